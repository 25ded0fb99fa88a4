"""The tables of states in the docs are those that the code decides by."""

import sys

from onceward.core.protocol import RULES, SINGLE_USE, STATUSES, Verdict
from onceward.core.transitions import ABSENT, TRANSITIONS
from places import DOCS

sys.path.insert(0, str(DOCS))
from generated import states


def test_the_page_has_every_transition_and_every_rule():
    page = states.part()
    for transition in TRANSITIONS:
        assert f"| {' | '.join(transition)} |" in page
    for rule in (*RULES, *SINGLE_USE):
        assert rule.verdict.value in page


def test_the_tables_name_only_statuses_that_exist():
    assert {t.source for t in TRANSITIONS} == {t.target for t in TRANSITIONS} == STATUSES | {ABSENT}


def test_every_verdict_is_reached_by_a_rule():
    assert {rule.verdict for rule in SINGLE_USE} == set(Verdict)

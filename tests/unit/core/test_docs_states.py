"""The tables of states in the docs are those that the code decides by."""

import sys

from onceward.core.protocol import RULES, SINGLE_USE
from onceward.core.transitions import TRANSITIONS
from places import DOCS

sys.path.insert(0, str(DOCS))
from generated import states


def test_the_page_has_every_transition_and_every_rule():
    page = states.part()
    for transition in TRANSITIONS:
        assert f"| {' | '.join(transition)} |" in page
    for rule in (*RULES, *SINGLE_USE):
        assert rule.verdict.value in page

"""What is public is in public-api.txt, and a change that breaks callers is announced."""

import sys
from pathlib import Path

import pytest

from tables import each

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "release"))

from public_api import LISTED, RELEASED, api, breaking, unannounced  # noqa: E402 # release/ is no package

CHANGELOG = "# Changelog\n\n## 2.0.0\n### Added\n- `once`\n\n### Breaking\n- `run` has no `key`.\n\n## 1.0.0\n### Breaking\n- `gone`\n"


@pytest.mark.slow
def test_the_list_is_up_to_date():
    assert LISTED.read_text() == api(), "the public API has changed: run `make api`, and look at the difference"


def test_what_broke_since_the_last_release_is_in_the_changelog():
    released = RELEASED.read_text() if RELEASED.exists() else ""
    assert unannounced(breaking(released, LISTED.read_text()), (ROOT / "CHANGELOG.md").read_text()) == []


@each(
    ("old", "new", "said"),
    [
        ("f: def f(a)", "", "f is gone"),
        ("f: def f(a)", "f: async def f(a)", "f: was def f(a), is async def f(a)"),
        ("f: def f(a, b)", "f: def f(b, a)", "f: was def f(a, b), is def f(b, a)"),
        ("f: def f(a, *, b=1)", "f: def f(a)", "f: has no parameter b"),
        ("f: def f(a)", "f: def f(a, b)", "f: requires b"),
        ("f: def f(a=1)", "f: def f(a)", "f: requires a"),
        ("f: def f(a)\nf: def f(b)", "f: def f(a)", "f: was def f(b), is None"),
    ],
)
def test_a_change_that_breaks_callers_is_found(old, new, said):
    assert breaking(old, new) == [said]


@each(
    ("old", "new"),
    [
        ("f: def f(a)", "f: def f(a)\ng: class"),
        ("f: def f(a)", "f: def f(a, b=None, *, c=1)"),
        ("f: def f(a, *, b)", "f: def f(a, *, b=1)"),
        ("f: def f(a=1)", "f: def f(a=2)"),
    ],
)
def test_a_change_that_breaks_nobody_is_none(old, new):
    assert breaking(old, new) == []


def test_a_change_must_be_in_the_newest_section_of_the_changelog():
    changes = ["onceward.Once.run: has no parameter key", "onceward.gone is gone", "onceward.once is gone"]
    assert unannounced(changes, CHANGELOG) == changes[1:]

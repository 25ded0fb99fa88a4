"""Planted defects, each a change to one line, and the tests that find it.

A defect is found when one of its tests fails. ``invariant`` is the number of the rule in the design that it breaks.
"""

import re
from typing import NamedTuple

_CHANGE = re.compile(r"(?:\[-(.+?)-\])?(?:\{\+(.+?)\+\})?", re.DOTALL)


class Defect(NamedTuple):
    """A change to one line, and who must see it."""

    name: str
    file: str  # under src/onceward/
    change: str  # as git's --word-diff shows it: [-what goes-]{+what comes+}; the text without it stands there once
    tests: str  # files or folders under tests/, or node ids, separated by spaces
    invariant: int | None = None

    @property
    def before(self) -> str:
        return _CHANGE.sub(r"\1", self.change)

    @property
    def after(self) -> str:
        return _CHANGE.sub(r"\2", self.change)

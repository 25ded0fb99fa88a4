"""Whether a person must ask the downstream about a parked key, before it can run again."""

import re
from typing import Final, NamedTuple

from onceward.core import history
from onceward.core.record import PARKED, Record
from onceward.core.writes import LAPSED
from onceward.results.step_entries import entries_of

_LAPSED: Final = re.compile(LAPSED.format("[0-9]+")).fullmatch


class Doubt(NamedTuple):
    """Nobody knows whether the effect of a parked key was made.

    Attributes:
        step: the step that may have been made; None means the whole handler.
    """

    step: str | None


def doubt_about(record: Record) -> Doubt | None:
    """Return the doubt about a parked key; None if its last attempt failed in the open, or the key is not parked."""
    if record.status != PARKED:
        return None
    try:
        begun = [entry.name for entry in entries_of(record.steps).values() if not entry.done]
    except ValueError:  # then its steps tell nothing
        begun = []
    if begun:
        return Doubt(begun[0])
    # A policy without history leaves the error alone; somebody who parks a lapsed key leaves the history alone.
    return Doubt(None) if _LAPSED(record.error or "") or history.ends_lapsed(record) else None

"""The ``steps`` of a record: what is recorded of each step, as JSON that a person can read in the ledger."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from onceward.core import history
from onceward.core.record import PARKED, Record

LONGEST: Final = 16 * 1024  # bytes of all steps of a record: each write of a claim can send all of them


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step.

    Attributes:
        name: its name, in the form of a key.
        attempt: the attempt that wrote this.
        done: whether it was made. If not, it has begun, and nobody knows more.
        at: when this was written, in seconds on the store's clock, as its owner estimates it.
        took: how long its function ran, in seconds.
        worker: who ran it.
        result: its recorded result: any JSON.
        why: why it has no result here, or none at all.
        kept: the fence of its claim, if the result is in a record of its own; else 0.
        fence: the fence of its claim, if it has only begun; else 0.
    """

    name: str
    attempt: int
    done: bool = True
    at: float = 0.0
    took: float = 0.0
    worker: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    why: str | None = None
    kept: int = 0
    fence: int = 0

    def is_of(self, fence: int, attempt: int) -> bool:
        """Return whether the claim with this fence and attempt wrote that the step begins. An older version noted no fence."""
        return self.fence == fence if self.fence else self.attempt >= attempt

    @property
    def text(self) -> str | None:
        """The recorded result as text; None if there is none to replay."""
        return None if not self.done or self.why is not None else bytes(self.result).decode()


_DECODER: Final = msgspec.json.Decoder(list[Entry])
_ENCODER: Final = msgspec.json.Encoder()


def entries_of(text: str | None) -> dict[str, Entry]:
    """Return the steps of a record, by name, in the order in which they were recorded.

    Raises:
        ValueError: they cannot be read.
    """
    return {} if text is None else {entry.name: entry for entry in _DECODER.decode(text)}


def text_of(entries: Mapping[str, Entry]) -> str:
    """Return the text of a record's ``steps``."""
    return _ENCODER.encode(list(entries.values())).decode()


def without(text: str | None, name: str) -> str | None:
    """Return a record's ``steps`` without the step ``name`` and all after it; None if there is no such step.

    Raises:
        ValueError: they cannot be read.
    """
    entries = entries_of(text)
    if name not in entries:
        return None
    names = list(entries)
    return text_of({one: entries[one] for one in names[: names.index(name)]})


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
        unfinished = [entry.name for entry in entries_of(record.steps).values() if not entry.done]
    except ValueError:  # then its steps tell nothing
        unfinished = []
    if unfinished:
        return Doubt(unfinished[0])
    return Doubt(None) if history.ends_lapsed(record) else None

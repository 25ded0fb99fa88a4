"""Fences that only grow over the life of a key.

A claim's fence is larger than those of the record, of each deleted record and of each claim of this process, and at least the
server's time. The process's own count when its transaction was rolled back and the clock of a new primary is late: no row
tells of that claim.

The time is read right before the row is written. In between, a claim can be stopped, or wait for a lock. Meanwhile another
may come and use its fence, and go: its transaction is rolled back, or its record is deleted. So each write also returns the time
after it. If that is a millisecond later, or earlier, the claim takes a new fence, now that the row is its own.
"""

from typing import Final

from onceward.core.record import Record, RepeatedWrite, Reply, Write
from onceward.core.writes import CARRIED

_BRIEF: Final = 1000  # microseconds in which no other claim can come, use its fence and go
_LARGEST: Final = 2**53 - 1  # that every reader of JSON reads exactly


class Fences:
    """The fences of a process's claims."""

    def __init__(self) -> None:
        self._high = 0  # the largest so far

    def asked(self, write: Write, seen: Record | None) -> int:
        """Return a write's fence as the statements take it. Below 1 it asks for a new one, larger than it without its sign."""
        return -max(self._high, write.fence - 1) if is_claim(write, seen) else write.fence

    def note(self, record: Record) -> None:
        """Note the fence of a claim that was won."""
        if self._high < record.fence < _LARGEST:
            self._high = record.fence


def is_claim(write: Write, seen: Record | None) -> bool:
    """Return whether a write asks for a new fence."""
    return write.fence != seen.fence if seen is not None else not write.fence


def is_doubtful(write: Write, reply: Reply) -> bool:
    """Return whether the record that a claim has made, or has met after a lost reply, needs a new fence."""
    record = reply.record
    if record is None:
        return False
    if not reply.won:  # its own, written when nobody knows
        return record.owner == write.owner and record.status == write.status and type(write) is not RepeatedWrite
    return not 0 <= round(reply.now * 1e6) - record.fence <= _BRIEF


def renewed(write: Write, record: Record) -> Write:
    """Return the claim with a new fence, to be swapped for the record that it has made."""
    kept = {field: getattr(record, field) for field in CARRIED}
    return write._replace(fence=record.fence + 1, **kept)

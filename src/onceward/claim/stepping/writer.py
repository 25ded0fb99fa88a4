"""Writes the steps of one claim. Steps that end at the same time share a write, whether threads or tasks run them."""

from collections.abc import Sequence
from functools import partial
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from onceward.claim.stepping.kept import keep
from onceward.core.drivers import Sleep, Steps, settle, settle_async
from onceward.core.step_writes import write_steps
from onceward.core.steps import Lost
from onceward.errors import LeaseLost, OncewardError, StoreError
from onceward.results.outcomes import storable
from onceward.results.step_entries import Entry, entries_of, text_of

if TYPE_CHECKING:
    from onceward.claim.lease import Lease

_LEASES: Final = 2  # for how many leases to try a write, while they are renewed
_FIRST_LOOK, _LAST_LOOK = 0.001, 0.02  # seconds between two looks of a caller whose change another one writes


class Note(NamedTuple):
    """What to record of a step.

    Attributes:
        name: the step's, in the form of a key.
        entry: what its record gets; None strikes it out.
        large: its result, if that gets a record of its own.
    """

    name: str
    entry: Entry | None
    large: str | None = None


class _Change:
    """A note on its way. ``error`` says why it was not written.

    When its caller has gone, it is ``is_left``, and another caller can write. ``blocks`` is whether its caller blocks the ``thread``.
    """

    __slots__ = ("blocks", "error", "is_left", "is_written", "note", "thread")

    def __init__(self, note: Note, *, blocks: bool) -> None:
        self.note = note
        self.blocks, self.thread = blocks, get_ident()
        self.is_written = self.is_left = False
        self.error: OncewardError | None = None


class StepWriter:
    """Writes the steps of a claim to its record.

    One caller at a time writes: its change, and those of all who wait. It renews the lease by the same write.
    """

    def __init__(self, claim: "Lease") -> None:
        self._claim = claim
        self._lock = RLock()  # reentrant: a signal handler may make a step in this thread
        self._waiting: list[_Change] = []
        self._writing: _Change | None = None  # of the caller who writes

    def write(self, note: Note) -> Note:
        """Record a note, and return it. It is without its result if only the store did not take that.

        An interrupt waits for the write.

        Raises:
            LeaseLost: the key has gone on without this worker.
            StoreError: the store refuses the write, or was unreachable until the lease was over.
        """
        change = _Change(note, blocks=True)
        try:
            settle(partial(self._recording, change), self._claim.store)
        finally:
            change.is_left = True  # first: an interrupt can come when a function is entered
            self._leave(change)
        return change.note

    async def write_async(self, note: Note) -> Note:
        """Like :meth:`write`, for a coroutine."""
        change = _Change(note, blocks=False)
        try:
            await settle_async(partial(self._recording, change), self._claim.store)
        finally:
            change.is_left = True  # first: an interrupt can come when a function is entered
            self._leave(change)
        return change.note

    def _recording(self, change: _Change) -> Steps[None]:
        """Write, or wait for the caller who writes. It can be driven again after an interrupt."""
        claim, look = self._claim, _FIRST_LOOK
        claim.check_own()
        limit = claim.clock() + _LEASES * claim.policy.lease
        if change not in self._waiting:
            if change.note.large is not None:
                yield from self._keep(change)
            self._waiting.append(change)
        while not change.is_written:
            if change.error is not None:
                raise change.error
            if not claim.paused and self._may_write(change):
                yield from self._write(limit)
            elif claim.clock() >= limit:
                raise StoreError(f"{claim.record.key}: its steps could not be written for {_LEASES} leases")
            else:
                yield Sleep(look)
                look = min(look * 2, _LAST_LOOK)

    def _keep(self, change: _Change) -> Steps[None]:
        """Record a large result. Do without it if the store does not take it within a lease: the step was made."""
        claim, note = self._claim, change.note
        assert note.entry is not None
        assert note.large is not None
        limit = claim.clock() + claim.policy.lease
        try:
            yield from keep(claim, note.name, note.large, lambda: min(limit, claim.clock() + claim.remaining))
        except OncewardError as error:
            why = storable(f"the store refused the result: {error}")
            change.note = Note(note.name, msgspec.structs.replace(note.entry, why=why, kept=0))

    def _may_write(self, change: _Change) -> bool:
        with self._lock:
            writing = self._writing
            # One that is suspended in this thread, such as a task, cannot go on while this caller blocks it.
            if writing is None or writing.is_left or (change.blocks and writing.thread == change.thread):
                self._writing = change
            return self._writing is change

    def _leave(self, change: _Change) -> None:
        if self._claim.inherited:
            return  # in a forked child, another thread of the parent may hold the lock for ever
        with self._lock:
            if self._writing is change:
                self._writing = None
            if change in self._waiting and (change.is_written or change.error is not None):
                self._waiting.remove(change)

    def _write(self, limit: float) -> Steps[None]:
        together = [one for one in self._waiting if not one.is_written and one.error is None]
        try:
            yield from self._swap(together, limit)
        except OncewardError as error:
            for one in together:
                one.error = error
            raise
        for one in together:
            one.is_written = True

    def _swap(self, together: list[_Change], limit: float) -> Steps[None]:
        claim = self._claim
        outcome = yield from write_steps(
            claim.store,
            claim.record,
            # Not those that a blocking caller in this thread has written meanwhile: their steps may have gone on.
            lambda text: with_notes([one.note for one in together if not one.is_written], text),
            claim.policy,
            lease=lambda: claim.renewal,
            clock=claim.clock,
            until=lambda: min(limit, claim.clock() + claim.remaining),
        )
        if isinstance(outcome, Lost):
            if claim.settled is None:
                claim.lose()
            raise LeaseLost(claim.record.key, f"record its step {together[0].note.name!r}")
        claim.renewed(outcome)


def with_notes(notes: Sequence[Note], text: str | None) -> str:
    """Return a record's ``steps`` with these notes."""
    entries = entries_of(text)
    for one in notes:
        if one.entry is None:
            entries.pop(one.name, None)
        else:
            entries[one.name] = one.entry
    return text_of(entries)

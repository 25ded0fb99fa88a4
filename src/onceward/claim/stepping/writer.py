"""Writes the steps of one claim. Steps that end at the same time share a write, whether threads or tasks run them."""

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Sleep, Steps, settle, settle_async
from onceward.core.step_writes import write_steps
from onceward.core.steps import Lost
from onceward.errors import LeaseLost, OncewardError, StoreError
from onceward.results.step_entries import Entry, entries_of, text_of

if TYPE_CHECKING:
    from onceward.claim.held import HeldClaim

_LEASES: Final = 2  # for how many leases to try a write, while they are renewed
_FIRST_LOOK, _LAST_LOOK = 0.001, 0.02  # seconds between two looks of a caller whose change another one writes


class _Change:
    """What to record of a step; an entry of None strikes it out. ``error`` says why that failed.

    When its caller has gone, it is ``left``, and another caller can write.
    """

    __slots__ = ("entry", "error", "left", "made", "name")

    def __init__(self, name: str, entry: Entry | None) -> None:
        self.name = name
        self.entry = entry
        self.made = self.left = False
        self.error: OncewardError | None = None


class StepWriter:
    """Writes the steps of a claim to its record.

    One caller at a time writes: its change, and those of all who wait. It renews the lease by the same write.
    """

    def __init__(self, claim: "HeldClaim") -> None:
        self._claim = claim
        self._lock = Lock()
        self._waiting: list[_Change] = []
        self._writing: _Change | None = None  # of the caller who writes

    def write(self, name: str, entry: Entry | None) -> None:
        """Record what is known of a step; None strikes it out. An interrupt waits for the write.

        Raises:
            LeaseLost: the key has gone on without this worker.
            StoreError: the store refuses the write, or was unreachable until the lease was over.
        """
        change = _Change(name, entry)
        self._waiting.append(change)
        try:
            settle(partial(self._recording, change), self._claim.store)
        finally:
            change.left = True  # first: an interrupt can come when a function is entered
            self._leave(change)

    async def write_async(self, name: str, entry: Entry | None) -> None:
        """Like :meth:`write`, for a coroutine."""
        change = _Change(name, entry)
        self._waiting.append(change)
        try:
            await settle_async(partial(self._recording, change), self._claim.store)
        finally:
            change.left = True  # first: an interrupt can come when a function is entered
            self._leave(change)

    def _recording(self, change: _Change) -> Steps[None]:
        """Write, or wait for the caller who writes. It can be driven again after an interrupt."""
        claim, look = self._claim, _FIRST_LOOK
        claim.check_own()
        limit = claim.clock() + _LEASES * claim.policy.lease
        while not change.made:
            if change.error is not None:
                raise change.error
            if self._may_write(change):
                yield from self._write(limit)
            elif claim.clock() >= limit:
                raise StoreError(f"{claim.record.key}: its steps could not be written for {_LEASES} leases")
            else:
                yield Sleep(look)
                look = min(look * 2, _LAST_LOOK)

    def _may_write(self, change: _Change) -> bool:
        with self._lock:
            if self._writing is None or self._writing.left:
                self._writing = change
            return self._writing is change

    def _leave(self, change: _Change) -> None:
        with self._lock:
            if self._writing is change:
                self._writing = None
            if change in self._waiting and (change.made or change.error is not None):
                self._waiting.remove(change)

    def _write(self, limit: float) -> Steps[None]:
        together = [one for one in self._waiting if not one.made and one.error is None]
        try:
            yield from self._swap(together, limit)
        except OncewardError as error:
            for one in together:
                one.error = error
            raise
        for one in together:
            one.made = True

    def _swap(self, together: list[_Change], limit: float) -> Steps[None]:
        claim = self._claim
        outcome = yield from write_steps(
            claim.store,
            claim.record,
            partial(_with, together),
            claim.policy,
            lease=lambda: claim.renewal,
            clock=claim.clock,
            until=lambda: min(limit, claim.clock() + claim.remaining),
        )
        if isinstance(outcome, Lost):
            if claim.settled is None:
                claim.lose()
            raise LeaseLost(claim.record.key, f"record its step {together[0].name!r}")
        claim.renewed(outcome)


def _with(changes: list[_Change], text: str | None) -> str:
    """Return a record's ``steps`` with these changes."""
    entries = entries_of(text)
    for one in changes:
        if one.entry is None:
            entries.pop(one.name, None)
        else:
            entries[one.name] = one.entry
    return text_of(entries)

"""What is noted of the steps of one claim, the room that the notes take, and how they are written.

Steps that end at the same time share a write, whether threads or tasks run them. It renews the lease, too.

A large result is in a completed record of its own, which is fetched only for an attempt that asks for it. Its key has the fence of
the claim that made it. So a worker that has lost its claim overwrites no result of its successor.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from onceward.core import protocol, steps
from onceward.core.drivers import Sleep, Steps, settle, settle_async
from onceward.core.record import Record, Reply, Write
from onceward.core.retries import patience, retry_transient
from onceward.core.step_writes import write_steps
from onceward.core.steps import Bid, Effect, Lost, Settled
from onceward.errors import (
    ForkedClaim,
    LeaseLost,
    OncewardError,
    ResultUnavailable,
    ResultWarning,
    StepNotRecorded,
    StoreError,
)
from onceward.keys.ledger_keys import kept_key
from onceward.results.codec import Codec
from onceward.results.outcomes import completion, size_of, storable
from onceward.results.step_entries import LONGEST, Entry, entries_of, text_of

if TYPE_CHECKING:
    from onceward.claim.lease import Lease

_EACH: Final = 150  # bytes that a step takes beside its name and its result
_LEAST: Final = 400  # and what it keeps while it runs: for a short result, or for where a large one is
_SPARE: Final = 250  # bytes for the reason why a result is not recorded
_LEASES: Final = 2  # for how many leases to try a write, while they are renewed
# Seconds that such a record stays longer: a key can be retried long after its step. One that keeps its input waits for a
# completer without an end. But nobody deletes this record after the completion, so it must expire.
_LONGER: Final = 30 * 86400.0
_WITH_INPUT: Final = 366 * 86400.0
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
    """A note on its way, with the ``value`` of a step that was made.

    ``blocks`` is whether its caller blocks the ``thread``. ``error`` says why it was not written.
    """

    def __init__(self, note: Note, value: object, *, blocks: bool) -> None:
        self.note = note
        self.value = value
        self.blocks, self.thread = blocks, get_ident()
        self.is_written = False
        self.error: OncewardError | None = None


class StepNotes:
    """Makes the notes, and writes them. One caller at a time writes: its change, and those of all who wait.

    Attributes:
        running: the steps that run, and the bytes that each needs.
        failed: why this attempt must begin no later step: nobody knows what is recorded of one that was made.
    """

    def __init__(self, claim: "Lease") -> None:
        self._claim = claim
        self.running: dict[str, int] = {}
        self.failed: OncewardError | None = None
        self._lock = RLock()  # reentrant: a signal handler may make a step in this thread
        self._waiting: list[_Change] = []
        self._writing: _Change | None = None  # of the caller who writes

    # --- room -----------------------------------------------------------------------------------------------------

    def check_room(self, name: str) -> None:
        """Raise OncewardError if the record has no room for a step that is about to begin."""
        if not self._fits(name):
            raise OncewardError(
                f"{self._claim.record.key}: no room for the step {name!r}: the steps of a record take at most {LONGEST} "
                "bytes. Nothing of it ran. Make fewer steps, or give each part a key of its own"
            )

    def _fits(self, name: str, result: int = 0) -> bool:
        """Keep room for a step that runs, with a result of so many bytes. Return whether there is that much.

        Threads that ask at the same time may all be refused, but never all be served.
        """
        recorded = self._claim.record.steps
        # Some characters of a name take a byte more in the record.
        self.running[name] = 2 * size_of(name) + (_LEAST if result < _LEAST - _EACH else _EACH + result)
        sizes = self.running.copy()
        if recorded is not None and len(sizes) > 1:
            for other in entries_of(recorded).values():
                if other.done:  # its text is counted
                    sizes.pop(other.name, None)
        return size_of(recorded or "") + sum(sizes.values()) + _SPARE <= LONGEST

    def leave(self, name: str) -> None:
        """Note that a step has ended."""
        self.running.pop(name, None)

    # --- notes ----------------------------------------------------------------------------------------------------

    def beginning(self, name: str) -> Note:
        """Return the note that a step begins."""
        claim = self._claim
        at, worker = claim.store_time(), claim.record.worker
        return Note(name, Entry(name, claim.attempt, done=False, at=at, worker=worker, fence=claim.fence))

    def success(self, name: str, codec: Codec, value: object, took: float) -> Note:
        """Return the note that a step was made. A result without room here gets a record of its own."""
        claim = self._claim
        outcome = completion(codec, claim.policy, value)
        common = (name, claim.attempt, True, claim.store_time(), took, claim.record.worker)
        text = outcome.result
        if text is None:
            return Note(name, Entry(*common, why=outcome.error))
        if self._fits(name, size_of(text)):
            return Note(name, Entry(*common, msgspec.Raw(text.encode())))
        self._fits(name)  # without it
        why = f"its result is in the record {kept_key(claim.record.key, name, claim.fence)}"
        return Note(name, Entry(*common, why=why, kept=claim.fence), text)

    def tell(self, note: Note, *, again: bool = False) -> None:
        """Tell observers of a step, and warn if its result is missing: a filter can make that an error. Call it last."""
        claim, entry = self._claim, note.entry
        assert entry is not None
        if claim.story is not None:
            claim.story.note("step", claim.record, step=note.name, again=again, ran=None if again else entry.took)
            claim.tell()
        if entry.why is not None and not entry.kept and not again:
            warnings.warn(
                f"{claim.record.key}: its step {note.name!r} is recorded without its result, so a later attempt will "
                f"be parked: {entry.why}",
                ResultWarning,
                stacklevel=4,
            )

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, note: Note, value: object = None) -> Note:
        """Record a note, and return it: without its result, if only the store did not take that. An interrupt waits for the write.

        Args:
            note: the note.
            value: the result of a step that was made.

        Raises:
            LeaseLost: the key has gone on without this worker.
            StepNotRecorded: the step was made, and the store refuses the write, or was unreachable until the lease was over.
            StoreError: the same, for another note.
        """
        return settle(partial(self._record, _Change(note, value, blocks=True)), self._claim.store)

    async def write_async(self, note: Note, value: object = None) -> Note:
        """Like :meth:`write`, for a coroutine."""
        return await settle_async(partial(self._record, _Change(note, value, blocks=False)), self._claim.store)

    def _record(self, change: _Change) -> Steps[Note]:
        try:
            yield from self._share(change)
        except OncewardError as error:
            note = change.note
            if note.entry is None or not note.entry.done or isinstance(error, LeaseLost | ForkedClaim):
                raise
            self.failed = StepNotRecorded(self._claim.record.key, note.name, change.value, str(error))
            raise self.failed from error
        return change.note

    def _share(self, change: _Change) -> Steps[None]:
        """Write, or wait for the caller who writes. It can be driven again after an interrupt."""
        claim, look = self._claim, _FIRST_LOOK
        claim.check_own()
        limit = claim.clock() + _LEASES * claim.policy.lease
        if change not in self._waiting:
            if change.note.large is not None:
                yield from self._keep(change)
            self._waiting.append(change)
        try:
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
        finally:
            self._leave(change)

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
            if writing is None or (change.blocks and writing.thread == change.thread):
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
        claim = self._claim
        together = [one for one in self._waiting if not one.is_written and one.error is None]
        try:
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
        except OncewardError as error:
            for one in together:
                one.error = error
            raise
        claim.renewed(outcome)
        for one in together:
            one.is_written = True


def with_notes(notes: Sequence[Note], text: str | None) -> str:
    """Return a record's ``steps`` with these notes."""
    entries = entries_of(text)
    for one in notes:
        if one.entry is None:
            entries.pop(one.name, None)
        else:
            entries[one.name] = one.entry
    return text_of(entries)


def keep(claim: "Lease", name: str, text: str, until: Callable[[], float]) -> Steps[None]:
    """Record a step's result. It can be repeated."""
    store, policy = claim.store, claim.policy
    more = _LONGER if claim.record.input is None else _WITH_INPUT
    longer = policy._replace(retention=None if policy.retention is None else policy.retention + more)
    bid = Bid(kept_key(claim.record.key, name, claim.fence), claim.record.owner, None, longer, claim.clock)

    def put(write: Write, seen: Record | None) -> Steps[Reply]:
        return store.insert(write) if seen is None else store.swap(write, seen)

    effect = Effect(protocol.completed(text), put)
    outcome = yield from retry_transient(lambda: steps.claim(store, bid, effect), claim.clock, until)
    if not isinstance(outcome, Settled):
        text = "another record is in the place of a step's result: look with onceward show, and clear a foreign record"
        raise StoreError(f"{bid.key}: {text}")
    if outcome.record.result is None:  # the store has no room for it
        raise StoreError(f"{outcome.record.error}")


def fetch(claim: "Lease", entry: Entry) -> Steps[str | None]:
    """Return the recorded text of a step's result; None if none was stored.

    Raises:
        ResultUnavailable: it is gone.
        StoreError: the store was unreachable.
    """
    if not entry.kept:
        return entry.text
    key = kept_key(claim.record.key, entry.name, entry.kept)
    clock = claim.clock
    reply = yield from retry_transient(partial(claim.store.load, key), clock, patience(clock))
    if reply.record is None:
        raise ResultUnavailable(key, "this record is gone")
    return (yield from steps.fetch_result(reply.record, clock)).result

"""What is noted of the steps of one claim, and the room that the notes take."""

import warnings
from typing import TYPE_CHECKING, Final

import msgspec

from onceward.claim.stepping.writer import Note, StepWriter
from onceward.errors import ForkedClaim, LeaseLost, OncewardError, ResultWarning, StepNotRecorded
from onceward.keys.ledger_keys import kept_key
from onceward.results.codec import Codec
from onceward.results.outcomes import completion, size_of
from onceward.results.step_entries import LONGEST, Entry, entries_of

if TYPE_CHECKING:
    from onceward.claim.lease import Lease

_EACH: Final = 150  # bytes that a step takes beside its name and its result
_LEAST: Final = 400  # and what it keeps while it runs: for a short result, or for where a large one is
_SPARE: Final = 250  # bytes for the reason why a result is not recorded


class Room:
    """Which steps of an attempt run, and the room that each needs.

    Attributes:
        running: the bytes that each takes.
    """

    def __init__(self) -> None:
        self.running: dict[str, int] = {}

    def fits(self, recorded: str | None, name: str, result: int = 0) -> bool:
        """Keep room for a step that runs, with a result of so many bytes. Return whether there is that much.

        Threads that ask at the same time may all be refused, but never all be served.
        """
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


class StepNotes:
    """Makes the notes, and writes them.

    Attributes:
        room: the steps that run, and the room that they need.
        failed: why this attempt must begin no later step: nobody knows what is recorded of one that was made.
    """

    def __init__(self, claim: "Lease") -> None:
        self._claim = claim
        self._writer = StepWriter(claim)
        self.room = Room()
        self.failed: OncewardError | None = None

    def check_room(self, name: str) -> None:
        """Raise OncewardError if the record has no room for a step that is about to begin."""
        if not self.room.fits(self._claim.record.steps, name):
            raise OncewardError(
                f"{self._claim.record.key}: no room for the step {name!r}: the steps of a record take at most {LONGEST} "
                "bytes. Nothing of it ran. Make fewer steps, or give each part a key of its own"
            )

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
        if self.room.fits(claim.record.steps, name, size_of(text)):
            return Note(name, Entry(*common, msgspec.Raw(text.encode())))
        self.room.fits(claim.record.steps, name)  # without it
        why = f"its result is in the record {kept_key(claim.record.key, name, claim.fence)}"
        return Note(name, Entry(*common, why=why, kept=claim.fence), text)

    def write(self, note: Note, value: object = None) -> Note:
        """Record a note, and return it as it was recorded. ``value`` is the result of a step that was made.

        Raises:
            LeaseLost: the key has gone on without this worker.
            StepNotRecorded: the store refuses the write, or was unreachable until the lease was over.
        """
        try:
            return self._writer.write(note)
        except OncewardError as error:
            self._check_made(note, value, error)
            raise

    async def write_async(self, note: Note, value: object = None) -> Note:
        """Like :meth:`write`, for a coroutine."""
        try:
            return await self._writer.write_async(note)
        except OncewardError as error:
            self._check_made(note, value, error)
            raise

    def _check_made(self, note: Note, value: object, error: OncewardError) -> None:
        """Raise StepNotRecorded if ``error`` kept the note of a step from being written that was made."""
        if note.entry is None or not note.entry.done or isinstance(error, LeaseLost | ForkedClaim):
            return
        self.failed = StepNotRecorded(self._claim.record.key, note.name, value, str(error))
        raise self.failed from error

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

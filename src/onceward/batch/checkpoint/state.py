"""A checkpoint's state, as data: items with their claims, when to flush them, and how their claims end.

Nothing here does I/O or calls user code except ``key``, ``fingerprint`` and ``size``. ``blocking.py`` and ``awaiting.py``
drive the steps and call the flush in between.
"""

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from onceward.batch.checkpoint.items import ItemReader, Limits
from onceward.batch.ends import HandledClaim, end_together, give_back_together, note_troubles
from onceward.claim import called, heartbeat
from onceward.claim.called import OVER, Call
from onceward.claim.guard import Guard
from onceward.claim.held import HeldClaim
from onceward.core import worker
from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED
from onceward.errors import ForkedClaim, LeaseLost, Mismatch, OncewardError
from onceward.keys.ledger_keys import ledger_key
from onceward.observe.observers import DeferredObservers

T = TypeVar("T")
_TOLD: Final = 3  # keys that an error about many of them names


class ItemKey(NamedTuple):
    """Key, fingerprint and size of an item to add."""

    key: str
    fingerprint: str | None
    size: int


class BufferedItem(HandledClaim, Generic[T], eq=False, kw_only=True):
    """An item in the buffer, with its claim."""

    item: T
    fingerprint: str | None
    twins: list[T] = msgspec.field(default_factory=list)  # later items with the same key, which share its outcome


class CheckpointState(Generic[T]):
    """The items that wait for a flush, and the first failure."""

    def __init__(self, guard: Guard, reader: ItemReader[T], limits: Limits) -> None:
        self.guard = guard
        self.observers = guard.observers = DeferredObservers(guard.observers)  # told when no lock is held
        self._reader = reader
        self._limits = limits
        self._held: dict[str, BufferedItem[T]] = {}
        self._bytes = 0
        self._oldest = 0.0
        self._failure: BaseException | None = None
        self._is_raised = False
        self._process = worker.generation
        self.closed = False  # set when its block is being left

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the owner, so that the claims are not its own."""
        return self._process != worker.generation

    def check_own(self) -> None:
        """Raise ForkedClaim in a forked process."""
        if self.inherited:
            raise ForkedClaim(f"the checkpoint of {self.guard.name}")

    @property
    def failed(self) -> bool:
        """Whether it has failed for good."""
        return self._failure is not None

    def fail(self, error: BaseException, *, is_raised: bool = True) -> None:
        """Take no more items. Without ``is_raised`` (the error is raised now), the next check raises it."""
        if self._failure is None:
            self._failure = error
        self._is_raised = is_raised

    def check(self) -> None:
        """After a failure, raise its error. If that was raised before, raise one that says so."""
        failure = self._failure
        if failure is None:
            return
        if not self._is_raised and isinstance(failure, Exception):
            self._is_raised = True
            raise failure
        raise OncewardError(
            "this checkpoint has failed before, and the keys of its items were given back. It takes no more items: leave its "
            "block, and open a new checkpoint for the redeliveries"
        ) from failure

    def check_open(self) -> None:
        """Like :meth:`check`, and raise if it is closed."""
        self.check()
        if self.closed:
            raise OncewardError("this checkpoint is closed: use it within its with block")

    def note(self, error: BaseException) -> None:
        """Add a failure that was not raised yet as a note to ``error``, which goes on."""
        if self._failure is not None and not self._is_raised:
            self._is_raised = True
            error.add_note(f"onceward: before that, the flush of a checkpoint failed: {self._failure!r}")

    def item_key(self, item: T) -> ItemKey | None:
        """Return what to claim for an item. If its key is already held, add the item there and return None.

        Raises:
            KeyMissing, Mismatch, TypeError: it cannot be added; other items are not affected.
        """
        part, fingerprint = self._reader.read(item)
        key = ledger_key(self.guard.name, part)
        held = self._held.get(key)
        if held is None:
            item_key = ItemKey(key, fingerprint, 0 if self._limits.bytes is None else self._reader.size(item))
            self.check_own()  # the user's callables may have forked
            return item_key
        if held.fingerprint != fingerprint:
            raise Mismatch(key)
        held.twins.append(item)
        return None

    def crowded(self, size: int) -> bool:
        """Whether ``size`` more bytes are too many, so that the buffer must be flushed first."""
        most = self._limits.bytes
        return most is not None and bool(self._held) and self._bytes + size > most

    def put(self, item: T, item_key: ItemKey, claim: HeldClaim) -> bool:
        """Add an item whose key is claimed. Return whether it is the first."""
        first = not self._held
        if first:
            self._oldest = self.guard.clock()
        self._bytes += item_key.size
        self._held[item_key.key] = BufferedItem(claim=claim, item=item, fingerprint=item_key.fingerprint)
        return first

    def leave(self, claim: HeldClaim) -> None:
        """Stop renewing a claim if an interrupt kept it from being put."""
        if all(one.claim is not claim for one in self._held.values()):
            self.guard.drop(claim)

    def take(self) -> list[BufferedItem[T]]:
        """Return all items, in the order added, and empty the buffer."""
        held, self._held, self._bytes = list(self._held.values()), {}, 0
        return held

    @property
    def due(self) -> bool:
        """Whether to flush now."""
        items, size, _ = self._limits
        full = (items is not None and len(self._held) >= items) or (size is not None and self._bytes >= size)
        return bool(self._held) and (full or self.seconds_left == 0)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the oldest item is old enough. None without an item or an age."""
        age = self._limits.seconds
        return None if age is None or not self._held else max(0.0, self._oldest + age - self.guard.clock())

    def lost(self, held: Sequence[BufferedItem[T]]) -> LeaseLost | None:
        """Return the error about claims lost while their items waited, or None. It is a failure for good."""
        lost = [one.held.record.key for one in held if one.held.lost]
        if not lost:
            return None
        error = _and_others(LeaseLost(lost[0], "be flushed"), lost)
        self.fail(error)
        return error

    def recording(self, held: Sequence[BufferedItem[T]]) -> Steps[None]:
        """Complete all, and note failures in ``trouble``. You can drive it again after an interrupt."""
        for one in held:
            one.handled(None, None)
        yield from end_together(self.guard, held, (2,))

    def recorded(self, held: Sequence[BufferedItem[T]]) -> tuple[list[T], Exception | None]:
        """Return the items whose keys are completed, including later ones with the same keys, and why others are not."""
        self._forget(held)
        items = [item for one in held if one.held.settled == COMPLETED for item in (one.item, *one.twins)]
        troubled = [one for one in held if one.held.settled != COMPLETED]
        if not troubled:
            return items, None
        trouble = troubled[0].trouble
        assert trouble is not None
        self.fail(_and_others(trouble, [one.held.record.key for one in troubled]))
        return items, trouble

    def cut_short(self, held: Sequence[BufferedItem[T]], error: BaseException) -> None:
        """Note that a flush ended with ``error``. Unless all was already recorded, this is a failure."""
        self._forget(held)
        if any(one.held.settled != COMPLETED for one in held):
            self.fail(error)
        if not isinstance(error, OncewardError):
            note_troubles(error, held)

    def ending(self, held: Sequence[BufferedItem[T]], call: Call) -> Steps[BaseException | None]:
        """End all as the flush ended, and return its failure. You can drive it again after an interrupt."""
        failure = called.failure(call)
        if failure is None:
            self.check_own()
            yield from self.recording(held)
        elif not self.inherited:
            self.fail(failure)
            if isinstance(failure, Exception):
                yield from self.failing(held, failure)
            else:
                self.drop(held)
        call[OVER] = True
        return failure

    def failing(self, held: Sequence[BufferedItem[T]], error: Exception) -> Steps[None]:
        """Release or park all with ``error``, as the policy says. Its own errors become notes on ``error``."""
        for one in held:
            one.handled(None, error)
        yield from end_together(self.guard, held, (2,))
        self._forget(held)
        note_troubles(error, held)

    def giving_back(self, held: Sequence[BufferedItem[T]], error: BaseException) -> Steps[None]:
        """Give all back because of ``error``, without counting an attempt. Its own errors become notes on ``error``."""
        self._forget(held)
        if not held:
            return
        claims = [one.held for one in held]
        try:
            yield from give_back_together(self.guard, claims)
            for claim in claims:
                if claim.story is not None:
                    claim.story.note("released", claim.record)
                claim.tell()
        except OncewardError as trouble:  # the keys stay claimed to the end of their leases
            error.add_note(f"onceward: and then, when {len(held)} keys were to be given back: {trouble}")

    def drop(self, held: Sequence[BufferedItem[T]]) -> None:
        """Leave all claimed to the end of their leases, because an interrupted flush may still go on."""
        for one in held:
            self.guard.drop(one.held)

    def _forget(self, held: Sequence[BufferedItem[T]]) -> None:
        for one in held:
            heartbeat.HEARTBEAT.forget(one.held)
            one.held.tell()


_E = TypeVar("_E", bound=Exception)


def _and_others(error: _E, keys: Sequence[str]) -> _E:
    """Add the other ``keys`` that an error is about as a note. The error already names the first."""
    if others := keys[1:]:
        more = f", and {len(others) - _TOLD} more" if len(others) > _TOLD else ""
        error.add_note(f"onceward: the same holds for {', '.join(others[:_TOLD])}{more}")
    return error

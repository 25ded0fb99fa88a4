"""A ``with`` block that runs once for a key."""

from types import TracebackType

from onceward.claim.called import OVER, RAISED, RETURNED, Call, enter_span, is_cut_short, leave_span, running_loop
from onceward.claim.claim import Claim
from onceward.claim.guard import Guard
from onceward.claim.held import HeldClaim, claimed
from onceward.claim.lease import CURRENT, leave_current
from onceward.claim.replays import CallOutcome


class ClaimContext:
    """What ``once.claim(key)`` returns: enter it with ``with`` or ``async with`` to hold the claim."""

    _block = Call(None, {OVER: True})  # how its block ended
    _is_left = False

    def __init__(self, guard: Guard, key: str) -> None:
        self._guard = guard
        self._key = key
        self._claim: HeldClaim | None = None

    def __enter__(self) -> Claim:
        return self._entered(self._guard.enter(self._key, None))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:  # not in a separate function: an interrupt at its entry would be missed
            self._leave(error).leave(self._block)
        except BaseException as met:
            if is_cut_short(self._block, met):
                self._leave(error).leave(self._block)
            raise

    async def __aenter__(self) -> Claim:
        loop = running_loop()
        return self._entered(await self._guard.enter_async(self._key, None), loop)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:  # as above
            await self._leave(error).leave_async(self._block)
        except BaseException as met:
            if not isinstance(met, GeneratorExit) and is_cut_short(self._block, met):
                await self._leave(error).leave_async(self._block)
            if met is not error and met.__context__ is None:
                met.__context__ = error  # asyncio's cancellation does not show what it replaces
            raise

    def _entered(self, entry: HeldClaim | CallOutcome[object], loop: object = None) -> HeldClaim:
        try:
            self._claim = claim = claimed(self._key, entry)
            claim.left, claim.loop = False, loop
            self._block, self._is_left = Call(), False
            self._block[RETURNED] = None
            CURRENT.set(claim)
            enter_span(claim)
        except BaseException:  # Python does not call __exit__ for a block that was not entered
            if isinstance(entry, HeldClaim):
                CURRENT.set(entry.outer)
                entry.drop()
            raise
        return claim

    def _leave(self, error: BaseException | None) -> HeldClaim:
        """Note how the block ended, and return its claim."""
        claim = self._claim
        if claim is None:
            raise RuntimeError("this once.claim(...) was not entered")
        if error is not None:
            self._block.pop(RETURNED, None)
            self._block[RAISED] = error
        leave_current(claim, claim.outer)
        claim.left, claim.loop = True, None
        if not self._is_left:
            self._is_left = True
            leave_span(claim)
        return claim

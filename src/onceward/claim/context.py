"""A ``with`` block that runs once for a key."""

from types import TracebackType

from onceward.claim.claim import Claim
from onceward.claim.guard import Guard
from onceward.claim.held import HeldClaim
from onceward.claim.replays import CallOutcome
from onceward.claim.running import CURRENT
from onceward.core.drivers import was_settled
from onceward.errors import Completed, OncewardError


class ClaimContext:
    """What ``once.claim(key)`` returns: enter it with ``with`` or ``async with`` to hold the claim."""

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
            try:
                self._leave(error)
            except BaseException as met:
                if self._is_cut_short(met):
                    self._leave(error)
                raise
        except BaseException as met:  # a second interrupt came before the first was handled
            if self._is_cut_short(met):
                self._leave(error)
            raise

    async def __aenter__(self) -> Claim:
        return self._entered(await self._guard.enter_async(self._key, None))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:  # as above
            try:
                await self._leave_async(error)
            except BaseException as met:
                if self._is_cut_short(met) and not isinstance(met, GeneratorExit):
                    await self._leave_async(error)
                raise
        except BaseException as met:
            if self._is_cut_short(met) and not isinstance(met, GeneratorExit):
                await self._leave_async(error)
            raise

    def _leave(self, error: BaseException | None) -> None:
        """End the claim as its block has ended. Call it again after an interrupt."""
        claim = self._held()
        if error is None:
            self._guard.finish(claim, None)
        elif isinstance(error, Exception):
            self._guard.fail(claim, error)
        else:
            self._guard.drop(claim)
        self._claim = None

    async def _leave_async(self, error: BaseException | None) -> None:
        """As :meth:`_leave`, for a coroutine."""
        claim = self._held()
        if error is None:
            await self._guard.finish_async(claim, None)
        elif isinstance(error, Exception):
            await self._guard.fail_async(claim, error)
        else:
            self._guard.drop(claim)
        self._claim = None

    def _is_cut_short(self, met: BaseException) -> bool:
        """Tell whether ``met`` came before the claim was ended."""
        return self._claim is not None and not isinstance(met, OncewardError) and not was_settled(met)

    def _entered(self, entry: HeldClaim | CallOutcome[object]) -> HeldClaim:
        try:
            self._claim = claim = claimed(self._key, entry)
            CURRENT.set(claim)
        except BaseException:  # Python does not call __exit__ for a block that was not entered
            if isinstance(entry, HeldClaim):
                CURRENT.set(entry.outer)
                self._guard.drop(entry)
            raise
        return claim

    def _held(self) -> HeldClaim:
        claim = self._claim
        if claim is None:
            raise RuntimeError("this once.claim(...) was not entered")
        CURRENT.set(claim.outer)
        return claim


def claimed(key: str, entry: HeldClaim | CallOutcome[object]) -> HeldClaim:
    """Return the claim that was won, or raise Completed with the recorded answer."""
    if isinstance(entry, CallOutcome):
        raise Completed(key, entry.value)
    return entry

"""Claims in the hand: a block that runs once for a key."""

from types import TracebackType

from onceward.claim import CURRENT, Claim
from onceward.errors import Completed
from onceward.guard import Answer, Guard


class ClaimContext:
    """What ``once.claim(key)`` returns: enter it with ``with`` or ``async with`` to hold the claim."""

    def __init__(self, guard: Guard, key: str) -> None:
        self._guard = guard
        self._key = key
        self._claim: Claim | None = None

    def __enter__(self) -> Claim:
        return self._entered(self._guard.enter(self._key, None))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        claim = self._left()
        if error is None:
            self._guard.finish(claim, None)
        elif isinstance(error, Exception):
            self._guard.fail(claim, error)
        else:
            self._guard.drop(claim)

    async def __aenter__(self) -> Claim:
        return self._entered(await self._guard.enter_async(self._key, None))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        claim = self._left()
        if error is None:
            await self._guard.finish_async(claim, None)
        elif isinstance(error, Exception):
            await self._guard.fail_async(claim, error)
        else:
            self._guard.drop(claim)

    def _entered(self, entry: Claim | Answer) -> Claim:
        claim = claimed(self._key, entry)
        try:
            self._claim = claim
            CURRENT.set(claim)
        except BaseException:  # the block is not entered, so nobody else would leave it
            CURRENT.set(claim.outer)
            self._guard.drop(claim)
            raise
        return claim

    def _left(self) -> Claim:
        claim = self._claim
        if claim is None:
            raise RuntimeError("this once.claim(...) was not entered")
        self._claim = None
        CURRENT.set(claim.outer)
        return claim


def claimed(key: str, entry: Claim | Answer) -> Claim:
    """Return the claim that was won; raises Completed with the recorded answer."""
    if isinstance(entry, Answer):
        raise Completed(key, entry.value)
    return entry

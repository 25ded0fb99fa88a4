"""Calls user code under a claim and then ends the claim, even if interrupts come between.

After an interrupt, the end gets one more try. CPython checks for interrupts when it enters a
function, so each ``try`` here contains all that must happen.
"""

import sys
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

from onceward.claim.called import OVER, RAISED, RETURNED, Call, drop_unawaited
from onceward.claim.lease import CURRENT, Lease, innermost, leave_current
from onceward.core.drivers import was_settled
from onceward.errors import OncewardError, Reentrant
from onceward.stores.contract import Store

C = TypeVar("C", bound=Lease | None)


def check_free(store: Store, key: str) -> None:
    """Raise Reentrant when the caller is already handling ``key`` of ``store``."""
    outer = innermost()
    while outer is not None:
        if outer.store is store and outer.settled is None and not outer.lost:
            if outer.record.key == key:
                raise Reentrant(key)
            if outer.paused and outer.exclusive:
                raise OncewardError(
                    f"{key}: the transaction of {outer.record.key} holds the ledger's file, so this would wait for "
                    "itself. Do it before or after the transaction"
                )
        outer = outer.outer


class Under:
    """The scope of one part of a handler that runs in parts: ``with Under(claim): next(parts)``."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Lease) -> None:
        self._claim = claim

    def __enter__(self) -> None:
        CURRENT.set(self._claim)
        self._claim.left = False
        enter_span(self._claim)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_current(self._claim, self._claim.outer)
        self._claim.left = True
        leave_span(self._claim)


def running_loop() -> Any:
    """Return the event loop that runs; None if there is none."""
    asyncio: Any = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()  # the documented one raises where there is none


def enter_span(claim: Lease) -> None:
    """Make the span of ``claim`` current, if it has one."""
    if claim.story is not None and claim.story.span is not None:
        claim.story.span.enter()


def leave_span(claim: Lease) -> None:
    """Make the span current that was so before, and end that of ``claim`` if it is over."""
    if claim.story is not None and claim.story.span is not None:
        claim.story.span.leave(over=claim.over)


def run_under(claim: C, call: Call, leave: Callable[[C, Call], BaseException | None]) -> BaseException | None:
    """Make ``call`` under ``claim``, if there is one; then ``leave(claim, call)`` handles its end.

    It returns what ``leave`` returns: the failure of a handler that returned. It raises what the handler raised.
    """
    try:
        try:
            if claim is not None:
                CURRENT.set(claim)
                claim.function = getattr(call.default_factory, "func", None)
                if claim.story is not None:
                    enter_span(claim)
            call[RETURNED]
        except BaseException as error:
            call[RAISED] = error
            leave(claim, call)
            raise
        return leave(claim, call)
    except BaseException as error:
        if is_cut_short(call, error):
            leave(claim, call)
        raise
    finally:
        if claim is not None:
            CURRENT.set(claim.outer)
            claim.left = True
            if claim.story is not None:
                leave_span(claim)


async def run_under_async(
    claim: C, call: Call, leave: Callable[[C, Call], Awaitable[BaseException | None]]
) -> BaseException | None:
    """Like :func:`run_under`; awaits what the call returns, if it can be awaited."""
    try:
        try:
            if claim is not None:
                CURRENT.set(claim)
                claim.loop = running_loop()
                claim.function = getattr(call.default_factory, "func", None)
                if claim.story is not None:
                    enter_span(claim)
            value = call[RETURNED]
            if hasattr(value, "__await__"):
                del call[RETURNED]
                call[RETURNED] = await value
        except BaseException as error:
            call[RAISED] = error
            drop_unawaited(call)
            await leave(claim, call)
            raise
        return await leave(claim, call)
    except BaseException as error:
        if not isinstance(error, GeneratorExit) and is_cut_short(call, error):  # a closed coroutine must not await
            drop_unawaited(call)
            await leave(claim, call)
        raise
    finally:
        if claim is not None:
            CURRENT.set(claim.outer)
            claim.left, claim.loop = True, None
            if claim.story is not None:
                leave_span(claim)


def is_cut_short(call: Call, error: BaseException) -> bool:
    """Return whether ``error`` came after the handler's end, and before that was recorded."""
    if OVER in call or isinstance(error, OncewardError) or was_settled(error):
        return False
    if RETURNED not in call:
        call.setdefault(RAISED, error)  # the interrupt came before the handler's own exception was noted
    return True

"""One call of a handler, under a claim that then ends. Its end stays known even if an interrupt comes at any moment.

An interrupt is any exception that neither the handler nor onceward raises: KeyboardInterrupt, a cancellation, or the
``Exception`` of a time limit, raised by a signal handler or by ``PyThreadState_SetAsyncExc``. CPython raises it between
bytecodes, even between a call and the store of its result. So a ``Call`` is a defaultdict: C code calls its factory and
keeps the result, and no interrupt can come between::

    call = Call(partial(function, *args))
    try:
        value = call[RETURNED]
    except BaseException as error:
        call[RAISED] = error     # RETURNED is set if the interrupt came after the handler's end

After an interrupt, the end gets one more try. CPython checks for interrupts when it enters a function, so each ``try`` here contains
all that must happen.
"""

import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from types import AsyncGeneratorType, CoroutineType, GeneratorType, TracebackType
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

from onceward.claim.claim import Claim
from onceward.claim.lease import CURRENT, Lease, innermost, leave_current
from onceward.core.drivers import was_settled
from onceward.errors import OncewardError, Reentrant
from onceward.stores.contract import Store

C = TypeVar("C", bound=Lease | None)
Call = defaultdict[str, object]
RETURNED: Final = "returned"
RAISED: Final = "raised"
OUTCOME: Final = "outcome"  # what is recorded of its result, which is encoded once
OVER: Final = "over"  # its end was recorded, or the caller is told why not

_INSTEAD: Final = {
    CoroutineType: "a coroutine, and nobody would await it: use run_async, or make the function async",
    GeneratorType: "a generator, and nobody would iterate over it: return a list, or do the work in the function itself",
    AsyncGeneratorType: "an async generator, and nobody would iterate over it: return a list, or do the work in the "
    "function itself",
}
LAZY: Final = frozenset(_INSTEAD)
TIME_LIMITS: Final[set[type[Exception]]] = (
    set()
)  # each is an Exception that cuts a handler short; the host's face adds it


class ClaimParameter(NamedTuple):
    """The parameter of a handler that takes the claim: its name, and its place if it can be positional."""

    name: str
    place: int | None

    def fill(
        self, claim: Claim, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[tuple[object, ...], Mapping[str, object]]:
        """Return the arguments of a call, with the claim added."""
        if self.place is not None and self.place <= len(args):
            return (*args[: self.place], claim, *args[self.place :]), kwargs
        return args, {**kwargs, self.name: claim}


class NotBegun(TypeError):
    """The work is in a coroutine or generator whose body has not begun, so the key is given back."""


def failure(call: Call) -> BaseException | None:
    """Return the handler's exception; None if it returned, even if an interrupt came right after.

    A returned coroutine or generator whose body has not begun is a failure, and is closed. No other result is touched.
    """
    if RETURNED not in call:
        raised = call[RAISED]
        assert isinstance(raised, BaseException)
        return raised
    value = call[RETURNED]
    if type(value) not in LAZY or (refusal := not_begun(call.default_factory, value)) is None:
        return None
    call[RAISED] = refusal  # first: a closed one looks as if it had begun
    del call[RETURNED]
    _close(value)
    return refusal


def is_failure(raised: BaseException) -> TypeGuard[Exception]:
    """Return whether a handler has failed. If not, it was cut short, and nobody knows what it did."""
    return isinstance(raised, Exception) and not isinstance(raised, tuple(TIME_LIMITS))


def drop_unawaited(call: Call) -> None:
    """Forget an awaitable that an interrupt kept from being awaited: the handler has not ended."""
    value = call.get(RETURNED)
    if RAISED in call and hasattr(value, "__await__"):
        del call[RETURNED]
        if isinstance(value, CoroutineType):
            value.close()


def not_begun(function: object, value: object) -> NotBegun | None:
    """Return the error about a coroutine or generator whose body has not begun; None for any other value."""
    kind = type(value)
    if kind not in LAZY or not _is_new(value):
        return None
    function = getattr(function, "func", function)  # a call's factory is a partial
    name = getattr(function, "__qualname__", repr(function))
    return NotBegun(f"{name}() returned {_INSTEAD[kind]}. Its body has not run, so the key is given back")


def refuse_not_begun(function: object, value: object) -> None:
    """Close a coroutine or generator whose body has not begun, and raise the error about it."""
    refusal = not_begun(function, value)
    if refusal is not None:
        _close(value)
        raise refusal


def _close(value: object) -> None:
    if isinstance(value, CoroutineType | GeneratorType):  # an async generator that has not begun needs no close
        value.close()


def _is_new(value: object) -> bool:
    import inspect

    if isinstance(value, CoroutineType):
        return inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    if isinstance(value, GeneratorType):
        return inspect.getgeneratorstate(value) == inspect.GEN_CREATED
    if not isinstance(value, AsyncGeneratorType):
        return False
    if sys.version_info >= (3, 12):
        return inspect.getasyncgenstate(value) == inspect.AGEN_CREATED
    frame = getattr(value, "ag_frame", None)
    if frame is None or getattr(value, "ag_running", False):
        return False
    import dis

    instruction: int = frame.f_code.co_code[frame.f_lasti]
    return dis.opname[instruction] == "RETURN_GENERATOR"


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


def is_same_ledger(one: Store, other: Store) -> bool:
    """Return whether two stores of this process have the same records."""
    return one is other or ("://" in one.url and one.url == other.url)


def is_within(claim: Lease) -> bool:
    """Return whether the caller is in the handler of ``claim``, maybe in a claim of its own."""
    inner = innermost()
    while inner is not None and inner is not claim:
        inner = inner.outer
    return inner is not None and not inner.left


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

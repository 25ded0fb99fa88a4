"""One call of a handler. Its end stays known even if an interrupt comes at any moment.

An interrupt is any exception that neither the handler nor onceward raises: KeyboardInterrupt, a cancellation, or the
``Exception`` of a time limit, raised by a signal handler or by ``PyThreadState_SetAsyncExc``. CPython raises it between
bytecodes, even between a call and the store of its result. So a ``Call`` is a defaultdict: C code calls its factory and
keeps the result, and no interrupt can come between::

    call = Call(partial(function, *args))
    try:
        value = call[RETURNED]
    except BaseException as error:
        call[RAISED] = error     # RETURNED is set if the interrupt came after the handler's end
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

if TYPE_CHECKING:
    from onceward.claim.claim import Claim

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
        self, claim: "Claim", args: tuple[object, ...], kwargs: Mapping[str, object]
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

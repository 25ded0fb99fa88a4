"""The two drivers of the protocol's generators.

Every protocol step is a generator. It yields store requests, or a :class:`Sleep`, and is sent the replies. ``drive`` calls
the store and ``drive_async`` awaits it. A driver throws an ``OncewardError`` into the generator, which decides whether to
retry. Every other exception is an interrupt: a KeyboardInterrupt, a cancellation, or a signal handler's time limit. It stops
the drive at once, and no step sees it: the steps are closed. Use ``settle`` or ``settle_async`` for steps that must finish all the same.
"""

import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from onceward.errors import OncewardError, StoreError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Steps = Generator[object, Any, T]  # the type of the reply depends on the request


class Transport(Protocol):
    """What a driver needs from a store: one reply for each request."""

    def exchange(self, request: object) -> object:
        """Send one request and return its reply."""

    async def exchange_async(self, request: object) -> object:
        """Send one request and return its reply, awaiting it."""


class Sleep(NamedTuple):
    """A step's request to pause, in seconds."""

    seconds: float


def drive(steps: Steps[T], store: Transport, met: type[Exception] = OncewardError) -> T:
    """Run ``steps`` on ``store`` and return their value. Raises what they raise. Of an exchange, they see what is a ``met``."""
    exchange = store.exchange
    try:
        request = next(steps)
        while True:
            try:
                reply = exchange(request) if type(request) is not Sleep else sleep(request.seconds)
            except met as error:  # the steps decide what a failed exchange means
                request = steps.throw(_seen(error))
            else:
                request = steps.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value
    except BaseException:
        _close(steps)
        raise


async def drive_async(steps: Steps[T], store: Transport, met: type[Exception] = OncewardError) -> T:
    """Like :func:`drive`, for a coroutine."""
    exchange = store.exchange_async
    try:
        request = next(steps)
        while True:
            try:
                reply = await (exchange(request) if type(request) is not Sleep else sleep_async(request.seconds))
            except met as error:  # the steps decide what a failed exchange means
                request = steps.throw(_seen(error))
            else:
                request = steps.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value
    except BaseException:
        _close(steps)
        raise


def mapped(steps: Steps[T], each: Callable[[object], object], met: type[Exception] = OncewardError) -> Steps[T]:
    """Run ``steps`` with ``each(request)`` in the place of each request but a pause. They see what is a ``met``, and no interrupt."""
    try:
        request = next(steps)
        while True:
            try:
                reply = yield request if type(request) is Sleep else each(request)
            except met as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value


def _seen(error: Exception) -> OncewardError:
    """Return the error that steps see: a StoreError for one of a store that breaks the contract."""
    if isinstance(error, OncewardError):
        return error
    seen = StoreError(f"the store failed: {error!r}")
    seen.__cause__ = error
    return seen


def _close(steps: Steps[object]) -> None:
    """Close steps now, not when the last one who keeps their exception lets go of it. The caller must see that exception."""
    try:
        steps.close()
    except Exception:  # such as that of a store of the user's whose steps yield once more
        pass


def settle(make: Callable[[], Steps[T]], store: Transport) -> T:
    """Drive ``make()`` to its end despite an interrupt, then raise the interrupt.

    The steps recognise their own earlier write, so they can run again. They get one more try: a second interrupt is a crash.
    """
    try:
        return drive(make(), store)
    except OncewardError:
        raise
    except BaseException as interrupt:
        try:
            drive(make(), store, Exception)
        except OncewardError as trouble:  # the caller must see the interrupt
            interrupt.add_note(f"{NOTE}and then {trouble}")
        except BaseException as second:
            second.add_note(GIVEN_UP)
            raise
        raise


async def settle_async(
    make: Callable[[], Steps[T]], store: Transport, patience: int = 2, met: type[Exception] = OncewardError
) -> T:
    """Like :func:`settle`, for a coroutine: a cancellation waits for the steps to end.

    After ``patience`` cancellations the caller stops waiting, and a separate task finishes the steps. Scopes such as anyio's
    cancel every await, and do not aim at these steps.
    """
    try:
        return await drive_async(make(), store, met)
    except (OncewardError, GeneratorExit):  # a closed coroutine must not await
        raise
    except BaseException as interrupt:
        await _again(make, store, patience, interrupt)
        raise


NOTE: Final = "onceward: "
GIVEN_UP: Final = f"{NOTE}interrupted again and again, the outcome was not recorded here"


def was_settled(interrupt: BaseException) -> bool:
    """Return whether ``settle`` has already dealt with this exception. If so, do not try again."""
    return any(note.startswith(NOTE) for note in getattr(interrupt, "__notes__", ()))


_ENDING: "set[asyncio.Task[Any]]" = set()  # keeps tasks alive, which a loop does not


async def _again(make: Callable[[], Steps[object]], store: Transport, patience: int, interrupt: BaseException) -> None:
    if not patience:
        interrupt.add_note(GIVEN_UP)
        return
    import asyncio

    settling = partial(settle_async, make, store, patience - 1, Exception)
    task = asyncio.get_running_loop().create_task(trouble_of(settling))
    _ENDING.add(task)
    task.add_done_callback(_ENDING.discard)
    while not task.done() and patience:
        try:
            await asyncio.wait((task,))
        except BaseException:  # the caller sees the first interrupt
            patience -= 1
    if not task.done():
        task.add_done_callback(_pass_on)  # nobody waits for it now
        interrupt.add_note(GIVEN_UP)
    elif (trouble := _pass_on(task)) is not None:
        for note in (f"{NOTE}and then {trouble}", *getattr(trouble, "__notes__", ())):
            interrupt.add_note(note)


def _pass_on(task: "asyncio.Task[BaseException | None]") -> BaseException | None:
    trouble = None if task.cancelled() else task.result()
    if isinstance(trouble, KeyboardInterrupt | SystemExit):
        raise trouble
    return trouble


async def trouble_of(settling: "Callable[[], Coroutine[Any, Any, object]]") -> BaseException | None:
    """Return what ``settling()`` raises. Raised from a task, an interrupt would end the loop and not reach the waiter."""
    try:
        await settling()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return error
    return None


def sleep(seconds: float) -> object:
    """Pause."""
    time.sleep(seconds)
    return None


async def sleep_async(seconds: float) -> object:
    """Pause, awaiting it."""
    import asyncio

    await asyncio.sleep(seconds)
    return None

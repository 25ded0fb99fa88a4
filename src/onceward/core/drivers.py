"""The two drivers of the protocol's generators.

Every step of the protocol is a generator that yields a store's requests, or a :class:`Sleep`, and is sent the replies.
``drive`` runs one by calling, ``drive_async`` by awaiting; all logic is in the generators. A request that fails with an
``OncewardError`` is thrown into the generator, which decides whether to try again. Every other exception is an interrupt: a
KeyboardInterrupt, a cancellation, or the ``Exception`` of a time limit that a signal handler raised. It is never thrown in,
it stops the drive at once, and no step catches it. ``settle``/``settle_async`` are for steps that must reach their end all
the same.
"""

import time
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from onceward.errors import OncewardError, StoreError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Steps = Generator[object, Any, T]  # what is sent in is the reply to what was yielded, of whatever type that has


class Transport(Protocol):
    """What a driver needs of a store: one request out, one reply back."""

    def exchange(self, request: object) -> object:
        """Send one request and return its reply."""

    async def exchange_async(self, request: object) -> object:
        """Send one request and return its reply, awaiting it."""


class Sleep(NamedTuple):
    """A pause of so many seconds, asked for by a step."""

    seconds: float


def drive(steps: Steps[T], store: Transport) -> T:
    """Run ``steps`` to their end on ``store`` and return their value; raises what they raise."""
    exchange = store.exchange
    try:
        request = next(steps)
        while True:
            try:
                reply = exchange(request) if type(request) is not Sleep else _sleep(request.seconds)
            except OncewardError as error:  # the steps decide what a failed exchange means
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_async(steps: Steps[T], store: Transport) -> T:
    """As :func:`drive`, for a coroutine."""
    exchange = store.exchange_async
    try:
        request = next(steps)
        while True:
            try:
                reply = await (exchange(request) if type(request) is not Sleep else _sleep_async(request.seconds))
            except OncewardError as error:  # the steps decide what a failed exchange means
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value


def settle(make: Callable[[], Steps[T]], store: Transport, patience: int = 2) -> T:
    """Drive ``make()`` to its end although an interrupt comes in between, then raise that.

    The steps recognise their own earlier write, so that they can be made and driven again. Whoever interrupts more than
    ``patience`` times means it.
    """
    over = False
    try:
        try:
            return drive(make(), store)
        except OncewardError:
            over = True
            raise
        except BaseException as interrupt:
            _settle_again(make, store, patience, interrupt)
            over = True
            raise
    except BaseException as interrupt:
        if not over and not was_settled(interrupt):  # a second interrupt came before the first was dealt with
            _settle_again(make, store, patience, interrupt)
        raise


def _settle_again(make: Callable[[], Steps[object]], store: Transport, patience: int, interrupt: BaseException) -> None:
    if not patience:
        interrupt.add_note(GIVEN_UP)
        return
    try:
        settle(make, _last(store, patience), patience - 1)
    except OncewardError as trouble:  # the interrupt is what the caller must hear of
        interrupt.add_note(f"{NOTE}and then {trouble}")


async def settle_async(make: Callable[[], Steps[T]], store: Transport, patience: int = 2) -> T:
    """As :func:`settle`, for a coroutine: a cancellation waits until the steps are at their end.

    Whoever cancels more often than that is let go, and the steps reach their end all the same, in a task of their own: some
    cancel at every await, such as the scopes of anyio, and do not mean these.
    """
    over = False
    try:
        try:
            return await drive_async(make(), store)
        except (OncewardError, GeneratorExit):  # a coroutine that is closed may not await any more
            over = True
            raise
        except BaseException as interrupt:
            await _again(make, store, patience, interrupt)
            over = True
            raise
    except BaseException as interrupt:
        if not (over or was_settled(interrupt) or isinstance(interrupt, GeneratorExit)):  # as in settle()
            await _again(make, store, patience, interrupt)
        raise


NOTE: Final = "onceward: "
GIVEN_UP: Final = f"{NOTE}interrupted again and again, the outcome was not recorded here"


def was_settled(interrupt: BaseException) -> bool:
    """Tell whether an exception went on because ``settle`` could do no more, so that nothing is to be tried again."""
    return any(note.startswith(NOTE) for note in getattr(interrupt, "__notes__", ()))


def _last(store: Transport, patience: int) -> Transport:
    """Return ``store`` for the next try; the last one takes each of its errors for one that it means."""
    return Frank(store) if patience == 1 else store


class Frank:
    """A store whose every ``Exception`` is its refusal: for one that breaks the contract and raises others each time."""

    def __init__(self, store: Transport) -> None:
        self._store = store

    def exchange(self, request: object) -> object:
        """Send one request and return its reply."""
        try:
            return self._store.exchange(request)
        except OncewardError:
            raise
        except Exception as error:
            raise StoreError(f"the store failed: {error!r}") from error

    async def exchange_async(self, request: object) -> object:
        """Send one request and return its reply, awaiting it."""
        try:
            return await self._store.exchange_async(request)
        except OncewardError:
            raise
        except Exception as error:
            raise StoreError(f"the store failed: {error!r}") from error


_ENDING: "set[asyncio.Task[Any]]" = set()  # a loop does not keep its tasks alive


async def _again(make: Callable[[], Steps[object]], store: Transport, patience: int, interrupt: BaseException) -> None:
    if not patience:
        interrupt.add_note(GIVEN_UP)
        return
    import asyncio

    settling = settle_async(make, _last(store, patience), patience - 1)
    task = asyncio.get_running_loop().create_task(_trouble(settling))
    _ENDING.add(task)
    task.add_done_callback(_ENDING.discard)
    while not task.done() and patience:
        try:
            await asyncio.wait((task,))
        except BaseException:  # the first interrupt is what the caller hears of
            patience -= 1
    if not task.done():
        task.add_done_callback(_pass_on)  # nobody waits for it any more
        interrupt.add_note(GIVEN_UP)
    elif (trouble := _pass_on(task)) is not None:
        for note in (f"{NOTE}and then {trouble}", *getattr(trouble, "__notes__", ())):
            interrupt.add_note(note)


def _pass_on(task: "asyncio.Task[BaseException | None]") -> BaseException | None:
    trouble = None if task.cancelled() else task.result()
    if isinstance(trouble, KeyboardInterrupt | SystemExit):
        raise trouble
    return trouble


async def _trouble(settling: "Coroutine[Any, Any, object]") -> BaseException | None:
    """Return what ``settling`` raises: from a task of its own an interrupt would end the loop, not reach who waits."""
    try:
        await settling
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return error
    return None


def _sleep(seconds: float) -> object:
    time.sleep(seconds)
    return None


async def _sleep_async(seconds: float) -> object:
    import asyncio

    await asyncio.sleep(seconds)
    return None

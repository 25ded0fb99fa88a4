"""Drivers for steps that clean up after themselves, such as a transaction: every exception is thrown into them.

``core/drivers.py`` stops at an interrupt, because its steps can be run again. A transaction cannot: its steps must see each
interrupt, and roll back.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from onceward.core import drivers
from onceward.core.drivers import Sleep, Steps, Transport, trouble_of

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
PATIENCE: Final = 2.0  # seconds that a cancelled caller waits for the steps
LEAVING: Final = 0.5  # seconds more, after giving up, in which they let go of what is the caller's


class Calls:
    """A transport whose requests are calls, which it makes, or awaits."""

    @staticmethod
    def exchange(request: Any) -> object:
        """Make the call."""
        return request()

    @staticmethod
    async def exchange_async(request: Any) -> object:
        """Await the call."""
        return await request()


CALLS: Final = Calls()


def drive_whole(steps: Steps[T], transport: Transport) -> T:
    """Run ``steps`` and return their value; they see every exception of an exchange, and every interrupt."""
    try:
        return _drive(steps, transport, None)
    except BaseException as met:
        if _are_over(steps):  # they have raised it themselves
            raise
        return _drive(steps, transport, met)  # an interrupt came between two of them


async def drive_whole_async(steps: Steps[T], transport: Transport) -> T:
    """As :func:`drive_whole`, for a coroutine."""
    try:
        return await _drive_async(steps, transport, None)
    except GeneratorExit:  # a closed coroutine must not await
        raise
    except BaseException as met:
        if _are_over(steps):
            raise
        return await _drive_async(steps, transport, met)


# One function that goes on in its own loop misses an interrupt at the loop's jump and in the handling of another error.
def _drive(steps: Steps[T], transport: Transport, error: BaseException | None) -> T:
    reply: object = None
    try:
        while True:
            request = steps.send(reply) if error is None else steps.throw(error)
            error = None
            try:
                reply = transport.exchange(request) if type(request) is not Sleep else drivers.sleep(request.seconds)
            except BaseException as met:
                error = met
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        reply = error = (
            None  # else an exception, its traceback and this frame would keep each other alive, and a claim with them
        )


async def _drive_async(steps: Steps[T], transport: Transport, error: BaseException | None) -> T:
    reply: object = None
    try:
        while True:
            request = steps.send(reply) if error is None else steps.throw(error)
            error = None
            try:
                if type(request) is Sleep:
                    reply = await drivers.sleep_async(request.seconds)
                else:
                    reply = await transport.exchange_async(request)
            except GeneratorExit:
                raise
            except BaseException as met:
                error = met
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        reply = error = None  # as above


def _are_over(steps: Steps[T]) -> bool:
    return getattr(steps, "gi_frame", None) is None


async def shielded(work: Callable[[], Coroutine[Any, Any, None]], give_up: Callable[[], None]) -> None:
    """Await ``work()`` in a task of its own, to its end even if the caller is cancelled; then raise the cancellation.

    A cancelled caller waits for PATIENCE seconds, calls ``give_up()``, and soon after leaves the task to itself.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    task = loop.create_task(trouble_of(work))
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)
    interrupt: BaseException | None = None
    ends: list[float] = []  # when to give up, and when to leave
    while not task.done() and not (ends and loop.time() >= ends[-1]):
        try:
            await asyncio.wait((task,), timeout=max(0.0, ends[0] - loop.time()) if ends else None)
        except GeneratorExit:  # as above
            give_up()
            raise
        except BaseException as met:  # some scopes cancel every await
            interrupt = interrupt or met
            ends = ends or [loop.time() + PATIENCE, loop.time() + PATIENCE + LEAVING]
        if len(ends) > 1 and loop.time() >= ends[0] and not task.done():
            ends.pop(0)
            give_up()
    if task.cancelled():  # its loop is closing
        raise interrupt or asyncio.CancelledError
    trouble = task.result() if task.done() else None
    if interrupt is not None:
        if trouble is not None:
            interrupt.add_note(f"onceward: and then {trouble}")
        raise interrupt
    if trouble is not None:
        raise trouble


_RUNNING: "set[asyncio.Task[BaseException | None]]" = set()  # keeps tasks alive, which a loop does not

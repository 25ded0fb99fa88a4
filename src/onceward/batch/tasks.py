"""Waits for the tasks of an async batch, despite interrupts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onceward.batch.recorder import AsyncRecorder
from onceward.batch.runner import Run

if TYPE_CHECKING:
    import asyncio


async def joined(run: Run, tasks: "Sequence[asyncio.Task[None]]", interrupts: list[BaseException]) -> None:
    """Wait for ``tasks``. An interrupt stops and cancels them, and is added to ``interrupts``."""
    import asyncio

    waiting = {task for task in tasks if not task.done()}
    while waiting:
        try:
            _, waiting = await asyncio.wait(waiting)
        except GeneratorExit:  # a coroutine that is being closed must not await
            raise
        except BaseException as error:  # the batch raises it after recording
            stop_all(run, waiting, interrupts, error)


async def closed(
    run: Run,
    tasks: "Sequence[asyncio.Task[None]]",
    interrupts: list[BaseException],
    recorder: AsyncRecorder,
    error: BaseException,
) -> None:
    """Record what is done after ``error``. It may be called again, after an interrupt or after all is recorded."""
    run.order.stop()
    if isinstance(error, GeneratorExit):  # as above
        return
    stop_all(run, tasks, interrupts, error)
    await joined(run, tasks, interrupts)
    await recorder.close()


def stop_all(
    run: Run, tasks: "Iterable[asyncio.Task[None]]", interrupts: list[BaseException], error: BaseException
) -> None:
    """Begin no more items, cancel ``tasks``, and add ``error`` to ``interrupts``."""
    interrupts.append(error)
    run.order.stop()
    for task in tasks:
        task.cancel()

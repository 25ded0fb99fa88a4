"""Waiting for the tasks of an awaited batch, whatever interrupts come."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onceward.batch.recorder import AsyncSettler
from onceward.batch.runner import Run

if TYPE_CHECKING:
    import asyncio


async def joined(run: Run, tasks: "Sequence[asyncio.Task[None]]", met: list[BaseException]) -> None:
    """Wait for ``tasks``; an interrupt stops and cancels them, and is one more of those that were ``met``."""
    import asyncio

    waiting = {task for task in tasks if not task.done()}
    while waiting:
        try:
            _, waiting = await asyncio.wait(waiting)
        except GeneratorExit:  # it is closed, and may not await any more
            raise
        except BaseException as error:  # raised when all is recorded
            stop_all(run, waiting, met, error)


async def closed(
    run: Run,
    tasks: "Sequence[asyncio.Task[None]]",
    met: list[BaseException],
    settler: AsyncSettler,
    error: BaseException,
) -> None:
    """Record what is done after ``error``; it may be called anew when it was interrupted, or when all is recorded."""
    if isinstance(error, GeneratorExit):
        return
    stop_all(run, tasks, met, error)
    await joined(run, tasks, met)
    await settler.close()


def stop_all(run: Run, tasks: "Iterable[asyncio.Task[None]]", met: list[BaseException], error: BaseException) -> None:
    """Begin nothing more and cancel ``tasks``, for ``error`` is one more of those that were ``met``."""
    met.append(error)
    run.stop()
    for task in tasks:
        task.cancel()

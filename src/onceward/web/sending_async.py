"""As ``sending.py``, for hosts that await."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from onceward.http.answer import CUT_SHORT, AnswerGate
from onceward.http.held import HeldRequest

T = TypeVar("T")
_RUNNING: Final[set["asyncio.Task[None]"]] = set()


async def to_its_end(work: Awaitable[T], abandoned: Callable[[T], Awaitable[object]]) -> T:
    """Await work that must not stop halfway. A cancellation first waits for its end.

    Args:
        work: what is awaited, in a separate task.
        abandoned: awaited with the outcome after a cancellation.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise
        rest = _kept(asyncio.ensure_future(_abandon(task, abandoned)))
        await asyncio.wait((rest,))  # a second cancellation ends the wait, not the work
        rest.result()
        raise


async def _abandon(task: "asyncio.Future[T]", abandoned: Callable[[T], Awaitable[object]]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None:
        await abandoned(task.result())


def _kept(task: "asyncio.Task[None]") -> "asyncio.Task[None]":
    """Keep a task alive to its end; a loop does not."""
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)
    return task


class SendingAsync:
    """A body to iterate over once, with ``async for``. If that ends early, the rest is made and recorded first.

    The head of the answer is already out. ``parts``, its body, is iterated under the claim.
    """

    def __init__(self, held: HeldRequest, gate: AnswerGate, parts: AsyncIterator[bytes]) -> None:
        self._held = held
        self._gate = gate
        self._parts = parts
        self._left = False
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._sent()

    async def drain(self) -> None:
        """Make and record the answer, if nobody iterates it any more, or nobody has begun to."""
        self._left = True
        if self._task is None:
            self._task = _kept(asyncio.ensure_future(self._make()))
        elif self._gate.ends_with_client and not self._held.is_over:
            self._held.ends_with_client = True
            self._task.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()  # this releases a waiting put()
        await asyncio.wait((self._task,))
        self._task.result()

    async def _sent(self) -> AsyncIterator[bytes]:
        # In a task, because frameworks cancel the iterating task when the client leaves.
        self._task = _kept(asyncio.ensure_future(self._make()))
        try:
            while (part := await self._queue.get()) is not None:
                yield part
        except (GeneratorExit, asyncio.CancelledError):
            await self.drain()
            raise
        await self._task

    async def _make(self) -> None:
        try:
            while not self._nobody_waits and (part := await self._held.call_async(self._next)) is not None:
                await self._put(self._gate.take(part))
            await self._end()
        except asyncio.CancelledError:
            if not self._held.ends_with_client:
                raise
            await self._held.end_async(self._gate.answer, CUT_SHORT)
        finally:
            if callable(close := getattr(self._parts, "aclose", None)):
                await close()
            if not self._left:
                await self._queue.put(None)

    async def _end(self) -> None:
        if self._nobody_waits:
            await self._held.end_async(self._gate.answer, CUT_SHORT)
        elif await self._held.end_async(self._gate.answer) is None:
            await self._put(self._gate.held)
        else:
            assert self._held.error is not None
            raise self._held.error

    @property
    def _nobody_waits(self) -> bool:
        return self._left and self._gate.ends_with_client

    async def _next(self) -> bytes | None:
        return await anext(self._parts, None)

    async def _put(self, part: bytes) -> None:
        if part and not self._left:
            await self._queue.put(part)

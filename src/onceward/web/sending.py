"""Sends an answer while its key is claimed; for synchronous hosts, such as WSGI servers, and for Django's that await.

Parts go out as they are made. The end waits for the record, so a client with a whole answer gets the same one for a retry.
If the client leaves early, the rest is still made and recorded.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import Context
from types import coroutine
from typing import Any, Final, Self, TypeVar

from onceward.http.answer import CUT_SHORT, PENDING, Answer, AnswerGate
from onceward.http.held import HeldRequest


class Sending:
    """A body that a server iterates over and closes (PEP 3333).

    Args:
        held, gate: the request and its answer.
        parts: the answer's body; it is iterated under the claim.
        close: called last when this is closed, such as the ``close`` of the application's own iterable.

    Attributes:
        has_begun: whether the head of the answer is out, or on its way, so that no other answer is possible.
        instead: what the client gets instead, after the answer was made to its end; None for the answer itself.
    """

    def __init__(
        self, held: HeldRequest, gate: AnswerGate, parts: Iterator[bytes], close: Callable[[], object] | None = None
    ) -> None:
        self.has_begun = True
        self.instead: Answer | None = None
        self._held = held
        self._gate = gate
        self._parts = parts
        self._close = close
        self._ready: list[bytes] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        self.advance(1)
        if not self._ready:
            raise StopIteration
        return self._ready.pop(0)

    def advance(self, parts: int | None = None) -> None:
        """Make the answer until ``parts`` parts of it can be sent, or to its end.

        Raises:
            Exception: the handler's; or why the record failed, if the client already has a part of the answer.
        """
        while not self._held.is_over and (parts is None or len(self._ready) < parts):
            self._pull()

    def close(self) -> None:
        """Make and record the rest of the answer, if the client left before its end."""
        try:
            while not self._held.is_over and not self._gate.ends_with_client:
                self._ready.clear()
                self._pull()
            if not self._held.is_over:
                self._held.end(self._gate.answer, CUT_SHORT)
        finally:
            close, self._close = self._close, None
            if close is not None:
                close()

    def _pull(self) -> None:
        if self._held.call(self._take):
            return
        self.instead = self._held.end(self._gate.answer, self._gate.cut)
        if self._held.pending and not self.has_begun:
            self._gate.headers.append(PENDING)
        if self.instead is None:
            if self._gate.held:
                self._ready.append(self._gate.held)
        elif self.has_begun:
            assert self._held.error is not None
            raise self._held.error
        else:
            self._ready = [self.instead.body]

    def _take(self) -> bool:
        """Take in the next part, and tell whether there was one. A part that is not bytes is the handler's mistake."""
        part = next(self._parts, None)
        if part is None:
            return False
        if ready := self._gate.take(part):
            self._ready.append(ready)
        return True


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
        rest = keep(asyncio.ensure_future(_abandon(task, abandoned)))
        await asyncio.wait((rest,))  # a second cancellation ends the wait, not the work
        rest.result()
        raise


async def _abandon(task: "asyncio.Future[T]", abandoned: Callable[[T], Awaitable[object]]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None:
        await abandoned(task.result())


def keep(task: "asyncio.Task[None]") -> "asyncio.Task[None]":
    """Keep a task alive to its end; a loop does not."""
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)
    return task


# An eager task starts at once, and needs no turn of the loop if it never waits.
EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


def begin(steps: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, context: Context) -> asyncio.Task[None]:
    """Return the task of a handler in ``context``. From Python 3.12 on it begins at once."""
    if not EAGER:
        steps.send(None)  # to its first step: even a task that is cancelled before it begins then tells its end
    return asyncio.Task(steps, loop=loop, name="onceward-http", context=context, **EAGER)


@coroutine
def first_step() -> Generator[None, None, None]:
    """Pause once."""
    yield


class SendingAsync:
    """A body to iterate over once, with ``async for``. If that ends early, the rest is made and recorded first.

    The head of the answer is already out. ``parts``, its body, is iterated under the claim.
    """

    def __init__(self, held: HeldRequest, gate: AnswerGate, parts: AsyncIterator[bytes]) -> None:
        self._held = held
        self._gate = gate
        self._parts = parts
        self._reader_left = False
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._iterate()

    async def drain(self) -> None:
        """Make and record the answer, if nobody iterates it any more, or nobody has begun to."""
        self._reader_left = True
        if self._task is None:
            self._task = keep(asyncio.ensure_future(self._make()))
        elif self._gate.ends_with_client and not self._held.is_over:
            self._held.ends_with_client = True
            self._task.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()  # this releases a waiting put()
        await asyncio.wait((self._task,))
        self._task.result()

    async def _iterate(self) -> AsyncIterator[bytes]:
        # In a task, because frameworks cancel the iterating task when the client leaves.
        self._task = keep(asyncio.ensure_future(self._make()))
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
            if not self._reader_left:
                await self._queue.put(None)

    async def _end(self) -> None:
        if self._nobody_waits:
            await self._held.end_async(self._gate.answer, CUT_SHORT)
        elif await self._held.end_async(self._gate.answer, self._gate.cut) is None:
            await self._put(self._gate.held)
        else:
            assert self._held.error is not None
            raise self._held.error

    @property
    def _nobody_waits(self) -> bool:
        return self._reader_left and self._gate.ends_with_client

    async def _next(self) -> bytes | None:
        return await anext(self._parts, None)

    async def _put(self, part: bytes) -> None:
        if part and not self._reader_left:
            await self._queue.put(part)

"""As ``sending.py``, for hosts that await."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from threading import Thread
from typing import Final, TypeVar

from onceward.claim.held import HeldClaim
from onceward.claim.running import Under
from onceward.http.answer import CUT_SHORT, Answer, Recorded
from onceward.http.exchange import Exchange
from onceward.http.gate import AnswerGate
from onceward.http.guarded import Guarded
from onceward.http.recording import Recording
from onceward.http.trouble import tell
from onceward.http.verdict import KeyedRequest
from onceward.observe.events import Within
from onceward.web.sending import Held

T = TypeVar("T")
_RUNNING: Final[set["asyncio.Task[None]"]] = set()


async def claim_async(guarded: Guarded, ask: KeyedRequest) -> "HeldAsync | Answer":
    """As :func:`onceward.web.sending.claim`, for a coroutine."""
    key, exchange = guarded.begin(ask)
    try:
        with Within(ask.route):
            entry = await guarded.guard.enter_async(key, ask.fingerprint)
        if isinstance(entry, HeldClaim):
            return HeldAsync(guarded, exchange, entry)
        answer = exchange.repeated(guarded.recorded(key, entry.value))
    except Exception as error:
        answer = exchange.refused(error)
    assert answer is not None  # no handler has run
    return answer


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


class HeldAsync:
    """As :class:`onceward.web.sending.Held`, for coroutines.

    Attributes:
        ends_with_client: set it before you cancel the handler because the client has left.
    """

    began: bool | None = None
    pending = False
    recorder: Thread | None = None

    def __init__(self, guarded: Guarded, exchange: Exchange, claim: HeldClaim) -> None:
        self.ends_with_client = False
        self.is_over = False
        self.error: Exception | None = None
        self._guarded = guarded
        self._exchange = exchange
        self._claim = claim

    @classmethod
    def of(cls, held: Held) -> "HeldAsync":
        """Return ``held`` for coroutines. Do not use ``held`` any more."""
        made = cls(*held.parts)
        made.began = held.began
        return made

    def blocking(self) -> Held:
        """Return the same request for synchronous code. Do not use this object any more."""
        made = Held(self._guarded, self._exchange, self._claim)
        made.began = self.began
        return made

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """As :meth:`onceward.web.sending.Held.call`."""
        with Under(self._claim):
            try:
                return await function()
            except Exception as error:
                self.is_over = True
                await self._failed(error)
                raise
            except BaseException:
                if not self.ends_with_client:
                    self.is_over = True
                    self._guarded.guard.drop(self._claim)
                raise

    async def end(self, answer: Answer) -> Answer | None:
        """As :meth:`onceward.web.sending.Held.end`."""
        return await self._end(self._exchange.outcome(answer, self.began))

    async def cut(self, answer: Answer) -> None:
        """As :meth:`onceward.web.sending.Held.cut`."""
        await self._end(self._exchange.outcome(answer, self.began, CUT_SHORT))

    async def _failed(self, error: Exception) -> None:
        try:
            await self._settle(self._exchange.raised(error, self.began))
        except Exception as trouble:  # the handler's own exception goes on
            tell(self._claim.record.key, trouble)

    async def _end(self, outcome: Recorded | Exception) -> Answer | None:
        self.is_over = True
        try:
            await self._settle(outcome)
        except Exception as error:
            instead = self._exchange.refused(error)
            self.error = None if instead is None else error
            return instead
        return None

    async def _settle(self, outcome: Recorded | Exception) -> None:
        recording = Recording(self._guarded.guard, self._claim, outcome, self._guarded.within)
        await recording.settle_async()
        if recording.pending:
            self.pending = True
            self.recorder = recording.start()  # a thread, because the loop ends with its server


class SendingAsync:
    """A body to iterate over once, with ``async for``. If that ends early, the rest is made and recorded first.

    Args:
        held: the request.
        gate: its answer; the head is already out.
        parts: the answer's body; it is iterated under the claim.
    """

    def __init__(self, held: HeldAsync, gate: AnswerGate, parts: AsyncIterator[bytes]) -> None:
        self._held = held
        self._gate = gate
        self._parts = parts
        self._left = False
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._sent()

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete, or the handler has failed."""
        return self._held.is_over

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
            while not self._nobody_waits and (part := await self._held.call(self._next)) is not None:
                await self._put(self._gate.take(part))
            await self._end()
        except asyncio.CancelledError:
            if not self._held.ends_with_client:
                raise
            await self._held.cut(self._gate.answer)
        finally:
            if callable(close := getattr(self._parts, "aclose", None)):
                await close()
            if not self._left:
                await self._queue.put(None)

    async def _end(self) -> None:
        if self._nobody_waits:
            await self._held.cut(self._gate.answer)
        elif await self._held.end(self._gate.answer) is None:
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

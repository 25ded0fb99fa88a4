"""An event loop in a thread of its own, for targets whose client can only be awaited."""

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from onceward.outbox.targets import SENT_WITHIN, MessageRefused, OutboxMessage, answers_of, not_sent

C = TypeVar("C")
T = TypeVar("T")
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a fork has no threads of its parent
_SPARE = 1.0  # seconds until a loop that has stopped is given up


def own_loop() -> asyncio.AbstractEventLoop:
    """Return this process's loop, which is always the same one, running."""
    if (loop := _loops.get(os.getpid())) is not None:
        return loop
    fresh = asyncio.new_event_loop()
    loop = _loops.setdefault(os.getpid(), fresh)  # atomic: two threads get the same one
    if loop is fresh:
        threading.Thread(target=loop.run_forever, name="onceward-targets", daemon=True).start()
    else:
        fresh.close()
    return loop


def awaited(work: Coroutine[Any, Any, T], seconds: float, loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Return what a coroutine returns, in a loop of another thread (default :func:`own_loop`).

    Raises:
        TimeoutError: it takes longer, or the loop has stopped.
    """
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), loop or own_loop())
    try:
        return future.result(seconds + _SPARE)
    finally:
        future.cancel()


class LoopTarget(ABC, Generic[C]):
    """A target whose client is awaited: all sends share one client ``C``, in the loop of :func:`own_loop`.

    Attributes:
        _where: its name, for errors.
        _refused: the client's errors that speak of a message itself.
    """

    _refused: tuple[type[Exception], ...] = ()
    _client: C | None = None
    _loop: asyncio.AbstractEventLoop | None = None  # of the client; another one after a fork
    _opening: asyncio.Lock

    def __init__(self, where: str) -> None:
        self._where = where

    @abstractmethod
    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if the target can never take the message."""

    @abstractmethod
    async def _connect(self) -> C:
        """Return a client that is connected."""

    @abstractmethod
    async def _disconnect(self, client: C) -> None:
        """Close a client."""

    @abstractmethod
    async def _deliver(self, client: C, messages: Sequence[OutboxMessage]) -> Sequence[Exception | None]:
        """Send messages together, and return the answer or error of each."""

    def _is_closed(self, client: C) -> bool:
        """Return whether a client must be replaced."""
        return False

    def _answer(self, error: Exception) -> Exception:
        """Return the answer that an error means."""
        answer = not_sent(self._where, error)
        return MessageRefused(str(answer)) if isinstance(error, self._refused) else answer

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Send messages, and wait until they are stored."""
        return answers_of(self, messages, lambda fit: awaited(self._send(fit), SENT_WITHIN - 1), self._answer)  # type: ignore[arg-type]  # each target has its batch

    def close(self) -> None:
        """Close the connection; the next send opens another."""
        client, self._client = self._client, None
        if client is not None and self._loop is _loops.get(os.getpid()):
            with suppress(Exception):  # it is gone anyway
                awaited(self._disconnect(client), SENT_WITHIN)

    async def _send(self, messages: Sequence[OutboxMessage]) -> Sequence[Exception | None]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._opening, self._client = loop, asyncio.Lock(), None
        async with self._opening:
            if self._client is not None and self._is_closed(self._client):
                client, self._client = self._client, None
                await self._disconnect(client)
            if self._client is None:
                self._client = await self._connect()
            client = self._client
        return await self._deliver(client, messages)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        after_in_child=_loops.clear
    )  # a process with the number of an ancestor does not have its thread

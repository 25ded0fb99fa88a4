"""The connections of a ledger on a client of redis-py: the caller's own, and what a client of ours has in common with it."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final

from redis import exceptions
from redis.client import NEVER_DECODE

from onceward.stores.redis import nodes
from onceward.stores.redis.confirmation import Confirmation
from onceward.stores.redis.conversation import conversed
from onceward.stores.redis.requests import Sendable

Command = Sequence[object]
_RAW: Final = {NEVER_DECODE: True}


class Clients(ABC):
    """Sends commands. All raise redis-py's errors.

    Args:
        replicas: how many replicas must have a write before it counts; 0 is none.
        disk: whether it must be on the disk, too.
        timeout: seconds for one request.
    """

    def __init__(self, replicas: int, disk: bool, timeout: float) -> None:
        self.timeout = timeout
        self.confirmation = Confirmation(replicas, disk, timeout / 2)
        self._after: list[list[object]] = [self.confirmation.command] if self.confirmation else []

    def mark(self, key: bytes) -> None:
        """Write this Redis key before each WAIT: from 7.2, it answers at once on a connection that has written nothing."""
        if self._after:
            self._after = [["SET", key, ""], self._after[-1]]

    @abstractmethod
    def client(self) -> Any:
        """Return the blocking client."""

    @abstractmethod
    def client_async(self) -> Any:
        """Return the client of the running event loop."""

    def run(self, calls: Sequence[Sendable]) -> list[Any]:
        """Make the calls in one round trip. Return the answers; one can be an error."""
        answers = self.call(calls)
        if lost := _unknown(answers):
            return _completed(answers, lost, self.call([calls[at] for at in lost], whole=True))
        return answers

    async def run_async(self, calls: Sequence[Sendable]) -> list[Any]:
        """As :meth:`run`, for a coroutine."""
        answers = await self.call_async(calls)
        if lost := _unknown(answers):
            return _completed(answers, lost, await self.call_async([calls[at] for at in lost], whole=True))
        return answers

    def call(self, calls: Sequence[Sendable], *, whole: bool = False) -> list[Any]:
        """Send the calls, with ``whole`` their scripts as text. Return the answers, when enough replicas have the writes."""
        return self.send([call.command(whole=whole) for call in calls], confirmed=True)

    async def call_async(self, calls: Sequence[Sendable], *, whole: bool = False) -> list[Any]:
        """As :meth:`call`, for a coroutine."""
        return await self.send_async([call.command(whole=whole) for call in calls], confirmed=True)

    def send(self, commands: Sequence[Command], *, confirmed: bool = False) -> list[Any]:
        """Send the commands in one round trip, and return the answers, or errors in their places.

        ``confirmed`` waits until enough replicas have what was written.
        """
        after = self._after if confirmed else []
        client = self.client()
        if after and hasattr(client, "nodes_manager"):
            return nodes.confirmed(client, [_utf8(command) for command in commands], self.confirmation)
        try:
            if (pool := getattr(client, "connection_pool", None)) is not None:
                answers = conversed(pool, [_utf8(command) for command in (*commands, *after)])
            elif len(commands) == 1 and not after:
                return [client.execute_command(*_utf8(commands[0]), **_RAW)]
            else:
                pipeline = client.pipeline(transaction=False)
                for command in (*commands, *after):
                    pipeline.execute_command(*_utf8(command), **_RAW)
                answers = pipeline.execute(raise_on_error=False)
            if any(isinstance(one, exceptions.ReadOnlyError) for one in answers):
                self.disconnect()
            return self._waited(answers) if after else answers
        except exceptions.ResponseError as error:
            return [error]

    async def send_async(self, commands: Sequence[Command], *, confirmed: bool = False) -> list[Any]:
        """As :meth:`send`, for a coroutine."""
        after = self._after if confirmed else []
        client = self.client_async()
        if after and hasattr(client, "nodes_manager"):
            return await nodes.confirmed_async(client, [_utf8(one) for one in commands], self.confirmation)
        try:
            if len(commands) == 1 and not after:
                return [await client.execute_command(*_utf8(commands[0]), **_RAW)]
            pipeline = client.pipeline(transaction=False)
            for command in (*commands, *after):
                pipeline.execute_command(*_utf8(command), **_RAW)
            answers = await pipeline.execute(raise_on_error=False)
            if any(isinstance(one, exceptions.ReadOnlyError) for one in answers):
                await self.disconnect_async()
            return self._waited(answers) if after else answers
        except exceptions.ResponseError as error:
            if isinstance(error, exceptions.ReadOnlyError):
                await self.disconnect_async()
            return [error]

    def ask(self, command: Command) -> list[Any]:
        """Send a command to each server that takes writes, and return their answers."""
        client = self.client()
        return _told(client, client.execute_command(*command, **_to_all(client)))

    async def ask_async(self, command: Command) -> list[Any]:
        """As :meth:`ask`, for a coroutine."""
        client = self.client_async()
        return _told(client, await client.execute_command(*command, **_to_all(client)))

    def _waited(self, answers: list[Any]) -> list[Any]:
        """Return the answers, if enough replicas have what was written."""
        reached, marked = answers.pop(), answers.pop() if len(self._after) > 1 else None
        if isinstance(marked, Exception):
            raise marked
        if (missing := self.confirmation.missing(reached)) is not None:
            raise missing
        return answers

    def disconnect(self) -> None:
        """Leave a server that is a replica now, if the client is our own."""
        return

    async def disconnect_async(self) -> None:
        """As :meth:`disconnect`, for a coroutine."""
        return

    @abstractmethod
    def close(self) -> None:
        """Close what was opened here; the next use opens it again."""


def _utf8(command: Command) -> list[object]:
    """Return a command whose texts are bytes: the encoding of the caller's client can be another one."""
    name, *rest = command
    return [name, *[part.encode() if isinstance(part, str) else part for part in rest]]


def _to_all(client: Any) -> dict[str, object]:
    """Return the options of a command for all primaries of a Cluster."""
    return {"target_nodes": client.PRIMARIES} if hasattr(client, "PRIMARIES") else {}


def _told(client: Any, told: Any) -> list[Any]:
    """Return the answers of all primaries of a Cluster, or of the one server."""
    is_of_each = isinstance(told, dict) and all(":" in str(name) for name in told)
    return list(told.values()) if hasattr(client, "PRIMARIES") and is_of_each else [told]


def _completed(answers: list[Any], lost: Sequence[int], again: Sequence[Any]) -> list[Any]:
    """Return answers with others in some places."""
    made = dict(zip(lost, again, strict=True))
    return [made.get(number, answer) for number, answer in enumerate(answers)]


def _unknown(answers: Sequence[object]) -> list[int]:
    """Return the numbers of the calls whose script the server does not know: it was restarted, or its scripts flushed."""
    return [at for at, answer in enumerate(answers) if type(answer) is exceptions.NoScriptError]


class GivenClient(Clients):
    """A blocking client of the caller's. It serves coroutines in threads, and stays the caller's to close."""

    def __init__(self, given: Any, replicas: int, disk: bool, timeout: float) -> None:
        super().__init__(replicas, disk, timeout)
        self._given = given

    def client(self) -> Any:
        return self._given

    def client_async(self) -> Any:
        return self._given

    async def send_async(self, commands: Sequence[Command], *, confirmed: bool = False) -> list[Any]:
        return await asyncio.to_thread(self.send, commands, confirmed=confirmed)

    async def ask_async(self, command: Command) -> list[Any]:
        return await asyncio.to_thread(self.ask, command)

    def close(self) -> None:
        """Leave it open."""


class GivenAsyncClient(Clients):
    """An asynchronous client of the caller's. It serves blocking callers, such as the heartbeat's, on the loop that used it last."""

    def __init__(self, given: Any, replicas: int, disk: bool, timeout: float) -> None:
        super().__init__(replicas, disk, timeout)
        self._given = given
        self._process: int | None = None  # that has used it; before that it has no sockets, and a child may begin
        self._loop: asyncio.AbstractEventLoop | None = None

    def client(self) -> Any:
        return self._given

    def client_async(self) -> Any:
        process = os.getpid()
        if self._process is None:
            self._process = process
        elif process != self._process:  # its sockets are the parent's: an answer would go to the wrong one
            raise exceptions.DataError(
                "this process was forked after the client was used: make its own client and Once in each process"
            )
        self._loop = asyncio.get_running_loop()
        return self._given

    async def send_async(self, commands: Sequence[Command], *, confirmed: bool = False) -> list[Any]:
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        answers = await super().send_async(commands, confirmed=confirmed)
        if task is not None and task.cancelling() > before:  # which wait_for() of Python 3.11 has swallowed in redis-py
            raise asyncio.CancelledError
        return answers

    def send(self, commands: Sequence[Command], *, confirmed: bool = False) -> list[Any]:
        return self._served(lambda: self.send_async(commands, confirmed=confirmed))

    def ask(self, command: Command) -> list[Any]:
        return self._served(lambda: self.ask_async(command))

    def _served(self, make: Callable[[], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
        loop = self._loop
        if loop is None or not loop.is_running():
            raise exceptions.DataError(
                "this client is asynchronous, and no event loop is running that it was used in: for handlers that are not "
                "asynchronous, give a URL or a redis.Redis"
            )
        if asyncio._get_running_loop() is loop:  # the documented one raises where there is none
            raise exceptions.DataError(
                "this client is asynchronous, and its event loop would wait for itself: await what has a form to await, or give "
                "a URL"
            )
        asking = asyncio.run_coroutine_threadsafe(make(), loop)
        try:
            return asking.result(2 * self.timeout)
        except (TimeoutError, CancelledError) as error:
            asking.cancel()
            raise exceptions.TimeoutError(f"its event loop gave no answer within {2 * self.timeout:g} s") from error

    def close(self) -> None:
        """Leave it open."""

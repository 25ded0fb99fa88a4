"""redis-py's connections, taken from their pool and held: a request then costs no way through the client and the pool.

Once a second, a connection goes through the pool again. The pool sees whether it is still open and whose it is, and makes a new
one if need be.
"""

import asyncio
from collections import deque
from time import monotonic
from typing import Any, Final, NamedTuple

from redis import exceptions

from onceward.stores.redis.conversation import answer, answer_async
from onceward.stores.redis.nodes import GONE

HELD: Final = 1.0  # seconds
LANES: Final = (
    4  # of an event loop. With two, a request waits longer for a far server; with more, fewer are sent together
)


class Packed(NamedTuple):
    """Commands as they are sent, and how many they are."""

    text: bytes
    size: int


class HeldConnections:
    """Connections of a blocking client. Each serves one request at a time.

    Args:
        pool: of redis-py.
        confirming: what each exchange ends with.
    """

    def __init__(self, pool: Any, confirming: Packed) -> None:
        self._pool, self._confirming = pool, confirming
        self._free: deque[tuple[Any, float]] = deque()
        self._is_closed = False

    def exchange(self, text: bytes, size: int) -> list[Any]:
        """Send so many commands in one piece. Return their answers, or errors in their places, and those of ``confirming``."""
        connection, since = self._taken()
        try:
            connection.send_packed_command([text + self._confirming.text])
            answers = [answer(connection) for _ in range(size + self._confirming.size)]
        except BaseException as error:
            connection.disconnect()  # else the next request would read the answers of this one
            self._pool.release(connection)
            if isinstance(error, GONE):
                self.drop()
            raise
        self._free.append((connection, since))
        if self._is_closed or exceptions.ReadOnlyError in map(type, answers):
            self.drop()
        return answers

    def _taken(self) -> tuple[Any, float]:
        try:
            connection, since = self._free.pop()
        except IndexError:
            return self._pool.get_connection(), monotonic()
        if monotonic() - since < HELD:
            return connection, since
        self._pool.release(connection)
        return self._pool.get_connection(), monotonic()

    def drop(self) -> None:
        """Close those that are free: the server is gone, or takes no writes."""
        while self._free:
            connection, _ = self._free.pop()
            connection.disconnect()
            self._pool.release(connection)

    def close(self) -> None:
        """Close those that are free, and each other one when its request has its answers."""
        self._is_closed = True
        self.drop()


class HeldConnectionsAsync:
    """As :class:`HeldConnections`, of a client of one event loop.

    When so many requests are under way as there are lanes, further ones wait. The next free connection sends all of them at once: many
    tasks then share a system call, where one after the other would each pay for its own.

    Args:
        pool: of ``redis.asyncio``, whose connections have no timeout of their own.
        timeout: seconds for the answers; a connection may take three times as long to be made.
        confirming: as for :class:`HeldConnections`. Requests that are sent together share one.
    """

    def __init__(self, pool: Any, timeout: float, confirming: Packed) -> None:
        self._pool, self._timeout, self._confirming = pool, timeout, confirming
        self._lanes = LANES  # that are free
        self._free: deque[tuple[Any, float]] = deque()
        self._waiting: deque[_Waiting] = deque()
        self._carriers: set[asyncio.Task[None] | None] = set()  # a loop keeps no task alive

    async def exchange(self, text: bytes, size: int) -> list[Any]:
        """As :meth:`HeldConnections.exchange`. TimeoutError: the pool gives no connection."""
        if not self._lanes:
            waiting = _Waiting(text, size, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            return await waiting.answers
        self._lanes -= 1
        try:
            return await self._exchange(text, size)
        finally:
            self._pass_on()

    def _pass_on(self, carrier: "asyncio.Task[None] | None" = None) -> None:
        """Give this lane to those that wait, or free it."""
        self._carriers.discard(carrier)
        # The documented function raises where there is no loop, as in a coroutine that is closed.
        loop = asyncio._get_running_loop()
        if not self._waiting or loop is None:
            self._lanes += 1
            return
        carrier = loop.create_task(self._carry())
        self._carriers.add(carrier)
        carrier.add_done_callback(self._pass_on)  # also if it is cancelled before it begins

    async def _carry(self) -> None:
        """Send all that waits, and give each its answers or the error."""
        mine = [one for one in self._waiting if not one.answers.done()]  # a cancelled one sends nothing
        self._waiting.clear()
        try:
            if mine:
                text, size = b"".join([one.text for one in mine]), sum(one.size for one in mine)
                _give(mine, await self._exchange(text, size), size)
        except BaseException as error:
            _refuse(mine, error)
            if isinstance(error, KeyboardInterrupt | SystemExit | asyncio.CancelledError):
                raise

    async def _exchange(self, text: bytes, size: int) -> list[Any]:
        connection, since = await self._taken()
        try:
            async with asyncio.timeout(self._timeout):
                await connection.send_packed_command([text + self._confirming.text])
                answers = [await answer_async(connection) for _ in range(size + self._confirming.size)]
        except BaseException as error:
            await self._end(connection)
            if isinstance(error, (*GONE, TimeoutError)):
                await self.drop()
            if isinstance(error, TimeoutError):
                raise exceptions.TimeoutError(f"there is no answer within {self._timeout:g} s") from error
            raise
        self._free.append((connection, since))
        if exceptions.ReadOnlyError in map(type, answers):
            await self.drop()
        return answers

    async def _taken(self) -> tuple[Any, float]:
        found = self._free.pop() if self._free else None
        if found is not None and monotonic() - found[1] < HELD:
            return found
        # A signal handler that raised inside redis-py can have left its pool locked for ever.
        async with asyncio.timeout(3 * self._timeout):
            if found is not None:
                await self._pool.release(found[0])
            return await self._pool.get_connection(), monotonic()

    async def drop(self) -> None:
        """As :meth:`HeldConnections.drop`."""
        while self._free:
            await self._end(self._free.pop()[0])

    async def _end(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)
        await self._pool.release(connection)


class _Waiting(NamedTuple):
    """A request that waits for a lane."""

    text: bytes
    size: int
    answers: asyncio.Future[list[Any]]


def _give(mine: list[_Waiting], answers: list[Any], size: int) -> None:
    """Give each its answers, and all of them the confirmation."""
    at, confirmation = 0, answers[size:]
    for one in mine:
        if not one.answers.done():
            one.answers.set_result(answers[at : at + one.size] + confirmation)
        at += one.size


def _refuse(mine: list[_Waiting], error: BaseException) -> None:
    """Give each the error. An interrupt is for one of them only, and the others can try again."""
    for one in mine:
        if one.answers.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            one.answers.cancel()
        else:
            one.answers.set_exception(error)
            if not isinstance(error, Exception):
                error = exceptions.ConnectionError("a request that was sent with this one was interrupted")

"""What sends a ledger's requests: to one server, by a client of the caller's, and to the nodes of a Cluster.

A client of redis-py knows which node of a Cluster has which slots, and each node has lanes of its own. What a node refuses while a slot
moves, or cannot answer while another one takes its place, is an error that ends by itself. The client then looks at the Cluster again.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, NamedTuple

from redis import exceptions
from redis.crc import key_slot

from onceward.stores.lanes import LedgerLanes
from onceward.stores.lanes.refusals import Broken
from onceward.stores.redis.requests import Asking, BellWait, Confirmation, RedisRequest, RoundTrip

MOST_LISTENING: Final = 100  # connections that wait for a bell
_MOVED: Final = (exceptions.MovedError, exceptions.AskError)
_CHANGED: Final = (Broken, *_MOVED, exceptions.ReadOnlyError, exceptions.ClusterDownError)
_REFUSALS: Final = (exceptions.RedisError, exceptions.RedisClusterException)
_TROUBLES: Final = frozenset({exceptions.ReadOnlyError, exceptions.NoScriptError})


class Servers(ABC):
    """What sends requests. A request raises Broken or redis-py's errors.

    Args:
        confirmation: what a write must have before it counts.
        timeout: seconds for one request.
    """

    def __init__(self, confirmation: Confirmation, timeout: float) -> None:
        self.confirmation, self.timeout = confirmation, timeout

    @abstractmethod
    def run(self, request: RedisRequest) -> list[Any]:
        """Do one request, and return its answers: errors in the places of what a server refused."""

    @abstractmethod
    async def run_async(self, request: RedisRequest) -> list[Any]:
        """As :meth:`run`, for a coroutine."""

    @abstractmethod
    def close(self) -> None:
        """Close what was opened here; the next use opens it again."""


class OneServer(Servers):
    """The lanes to one server. Who waits for a bell has others: it would hold up the rest.

    Args:
        make: makes a lane for threads.
        make_async: makes one for coroutines.
        most: lanes. All else is as for :class:`Servers`.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        make_async: Callable[[], Any],
        most: int,
        confirmation: Confirmation,
        timeout: float,
    ) -> None:
        super().__init__(confirmation, timeout)
        self._calls = LedgerLanes(make, make_async, most, timeout)
        self._bells = LedgerLanes(make, make_async, MOST_LISTENING, timeout)

    def run(self, request: RedisRequest) -> list[Any]:
        lanes = self._bells if type(request) is BellWait else self._calls
        answers: list[Any] = lanes.run(request, _arguments)
        if not _TROUBLES.isdisjoint(map(type, answers)) and (lost := self._lost(answers)):
            return completed(answers, lost, lanes.run(request.whole(lost), _arguments))
        return answers

    async def run_async(self, request: RedisRequest) -> list[Any]:
        lanes = self._bells if type(request) is BellWait else self._calls
        answers: list[Any] = await lanes.run_async(request, _arguments)
        if not _TROUBLES.isdisjoint(map(type, answers)) and (lost := self._lost(answers)):
            return completed(answers, lost, await lanes.run_async(request.whole(lost), _arguments))
        return answers

    def _lost(self, answers: list[Any]) -> list[int]:
        """Return the places of scripts that the server has lost. Leave a server that is a replica now."""
        kinds = [type(answer) for answer in answers]
        if exceptions.ReadOnlyError in kinds:
            self.close()
        return [place for place, kind in enumerate(kinds) if kind is exceptions.NoScriptError]

    def close(self) -> None:
        self._calls.close()
        self._bells.close()


def _arguments(request: RedisRequest) -> tuple[RedisRequest]:
    """Return what a lane takes for a request."""
    return (request,)


def completed(answers: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """Return answers with others in some places."""
    by_place = dict(zip(places, others, strict=True))
    return [by_place.get(place, answer) for place, answer in enumerate(answers)]


class InThreads(Servers):
    """A blocking client of the caller's. It serves coroutines in threads."""

    def __init__(self, servers: Servers) -> None:
        super().__init__(servers.confirmation, servers.timeout)
        self._servers = servers

    def run(self, request: RedisRequest) -> list[Any]:
        return self._servers.run(request)

    async def run_async(self, request: RedisRequest) -> list[Any]:
        return await asyncio.to_thread(self._servers.run, request)

    def close(self) -> None:
        """Leave it open."""


class OnItsLoop(InThreads):
    """An asynchronous client of the caller's. It serves blocking callers, such as the heartbeat's, on the loop that used it last."""

    def __init__(self, servers: Servers) -> None:
        super().__init__(servers)
        self._process: int | None = None  # that has used it; before that it has no sockets, and a child may begin
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run_async(self, request: RedisRequest) -> list[Any]:
        process = os.getpid()
        if self._process is None:
            self._process = process
        elif process != self._process:  # its sockets are the parent's: an answer would go to the wrong one
            raise exceptions.DataError(
                "this process was forked after the client was used: make its own client and Once in each process"
            )
        self._loop = asyncio.get_running_loop()
        return await self._servers.run_async(request)

    def run(self, request: RedisRequest) -> list[Any]:
        loop = self._loop
        if loop is None or not loop.is_running():
            raise exceptions.DataError(
                "this client is asynchronous, and the event loop that used it does not run. For handlers that are not "
                "asynchronous, give a URL or a redis.Redis"
            )
        if asyncio._get_running_loop() is loop:  # the documented one raises where there is none
            raise exceptions.DataError(
                "this client is asynchronous, and its event loop would wait for itself. In a coroutine, use the asynchronous form "
                "of this call, or give a URL"
            )
        asking = asyncio.run_coroutine_threadsafe(self.run_async(request), loop)
        try:
            return asking.result(2 * self.timeout)
        except (TimeoutError, CancelledError) as error:
            asking.cancel()
            raise Broken(f"its event loop gave no answer within {2 * self.timeout:g} s") from error


class NodePart(NamedTuple):
    """What one node has of a request, and the places of its answers."""

    node: Any
    request: RedisRequest
    places: Sequence[int]


class Cluster(Servers):
    """The nodes of a Cluster. ``make`` makes the client, ``lanes`` returns the lanes to a node; all else as for :class:`Servers`."""

    def __init__(
        self,
        make: Callable[[], Any],
        lanes: Callable[[Any], OneServer],
        confirmation: Confirmation,
        timeout: float,
    ) -> None:
        super().__init__(confirmation, timeout)
        self._make, self._make_lanes = make, lanes
        self._client: Any = None
        self._lanes: dict[str, OneServer] = {}

    def run(self, request: RedisRequest) -> list[Any]:
        """Do one request, on one node after the other."""
        client = self._open()
        try:
            parts, replies = _parts(client, request), []
            for part in parts:
                try:
                    replies.append(self._of(part.node).run(part.request))
                except Broken as error:
                    replies.append([error] * len(part.places))
            answers, has_changed = _put(parts, replies)
        except exceptions.SlotNotCoveredError:
            self._look(client)
            raise
        if has_changed:
            self._look(client)
        return answers

    async def run_async(self, request: RedisRequest) -> list[Any]:
        """Do one request, on its nodes at the same time."""
        client = await self._open_async()
        try:
            parts = _parts(client, request)
            runs = [self._run_part(part) for part in parts]
            replies = await asyncio.gather(*runs) if len(runs) > 1 else [await runs[0]]
            answers, has_changed = _put(parts, replies)
        except exceptions.SlotNotCoveredError:
            await self._look_async(client)
            raise
        if has_changed:
            await self._look_async(client)
        return answers

    async def _run_part(self, part: NodePart) -> list[Any]:
        try:
            return await self._of(part.node).run_async(part.request)
        except Broken as error:
            return [error] * len(part.places)

    def _of(self, node: Any) -> OneServer:
        return self._lanes.get(node.name) or self._lanes.setdefault(node.name, self._make_lanes(node))

    def _open(self) -> Any:
        if self._client is None:
            self._client = self._make()
        return self._client

    async def _open_async(self) -> Any:
        return self._client or await asyncio.to_thread(self._open)

    def _look(self, client: Any) -> None:
        with suppress(*_REFUSALS):
            client.nodes_manager.initialize()

    async def _look_async(self, client: Any) -> None:
        await asyncio.to_thread(self._look, client)

    def close(self) -> None:
        client, self._client = self._client, None
        for lanes in list(self._lanes.values()):
            lanes.close()
        if client is not None:
            client.close()


class AsyncCluster(Cluster):
    """As :class:`Cluster`, on a client of ``redis.asyncio``, for the coroutines of its event loop."""

    async def _open_async(self) -> Any:
        return await self._open().initialize()

    async def _look_async(self, client: Any) -> None:
        with suppress(*_REFUSALS):
            await client.nodes_manager.initialize()


def _parts(client: Any, request: RedisRequest) -> list[NodePart]:
    """Return what each node has of a request."""
    if isinstance(request, Asking):
        return [NodePart(node, request, [place]) for place, node in enumerate(client.get_primaries())]
    find = client.nodes_manager.get_node_from_slot
    if not isinstance(request, RoundTrip):
        return [NodePart(find(key_slot(request.key)), request, [0])]
    places: dict[str, tuple[Any, list[int]]] = {}
    for place, call in enumerate(request.calls):
        node = find(key_slot(call.base))
        places.setdefault(node.name, (node, []))[1].append(place)
    return [
        NodePart(node, RoundTrip(request.action, [request.calls[place] for place in mine]), mine)
        for node, mine in places.values()
    ]


def _put(parts: Sequence[NodePart], replies: Sequence[Sequence[Any]]) -> tuple[list[Any], bool]:
    """Return the answers in the order of the request, and whether the Cluster may have changed."""
    answers: dict[int, Any] = {}
    for part, mine in zip(parts, replies, strict=True):
        answers |= zip(part.places, mine, strict=True)
    has_changed = any(isinstance(answer, _CHANGED) for answer in answers.values())
    for place, answer in answers.items():
        if isinstance(answer, _MOVED):
            answers[place] = exceptions.TryAgainError(f"the slot moves: {answer}")
    return [answers[place] for place in range(len(answers))], has_changed

"""The nodes of a Cluster. A client of redis-py knows which node has which slots, and each node has lanes of its own.

What a node refuses while a slot moves, or cannot answer while another one takes its place, is an error that ends by itself. The client
then looks at the Cluster again.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from redis import exceptions
from redis.crc import key_slot

from onceward.stores.redis.confirmation import Confirmation
from onceward.stores.redis.requests import Asking, RedisRequest, RoundTrip
from onceward.stores.redis.servers import OneServer
from onceward.stores.sql.refusals import Broken

_MOVED: Final = (exceptions.MovedError, exceptions.AskError)
_CHANGED: Final = (Broken, *_MOVED, exceptions.ReadOnlyError, exceptions.ClusterDownError)
_REFUSALS: Final = (exceptions.RedisError, exceptions.RedisClusterException)


class NodePart(NamedTuple):
    """What one node has of a request, and the places of its answers."""

    node: str
    request: RedisRequest
    places: Sequence[int]


class Cluster:
    """As :class:`onceward.stores.redis.servers.Servers`.

    Args:
        make: makes the client.
        lanes: returns the lanes to a node: takes the client and the node's name.
        confirmation: what a write must have before it counts.
        timeout: seconds for one request.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        lanes: Callable[[Any, str], OneServer],
        confirmation: Confirmation,
        timeout: float,
    ) -> None:
        self.confirmation, self.timeout = confirmation, timeout
        self._make, self._make_lanes = make, lanes
        self._client: Any = None
        self._lanes: dict[str, OneServer] = {}

    def run(self, request: RedisRequest) -> list[Any]:
        """Do one request, on one node after the other."""
        client = self._opened()
        try:
            parts, given = _parts(client, request), []
            for part in parts:
                try:
                    given.append(self._of(client, part.node).run(part.request))
                except Broken as error:
                    given.append([error] * len(part.places))
            answers, has_changed = _put(parts, given)
        except exceptions.SlotNotCoveredError:
            self._look(client)
            raise
        if has_changed:
            self._look(client)
        return answers

    async def run_async(self, request: RedisRequest) -> list[Any]:
        """Do one request, on its nodes at the same time."""
        client = await self._opened_async()
        try:
            parts = _parts(client, request)
            tried = [self._tried(client, part) for part in parts]
            given = await asyncio.gather(*tried) if len(tried) > 1 else [await tried[0]]
            answers, has_changed = _put(parts, given)
        except exceptions.SlotNotCoveredError:
            await self._look_async(client)
            raise
        if has_changed:
            await self._look_async(client)
        return answers

    async def _tried(self, client: Any, part: NodePart) -> list[Any]:
        try:
            return await self._of(client, part.node).run_async(part.request)
        except Broken as error:
            return [error] * len(part.places)

    def _of(self, client: Any, node: str) -> OneServer:
        return self._lanes.get(node) or self._lanes.setdefault(node, self._make_lanes(client, node))

    def _opened(self) -> Any:
        if self._client is None:
            self._client = self._make()
        return self._client

    async def _opened_async(self) -> Any:
        return self._client or await asyncio.to_thread(self._opened)

    def _look(self, client: Any) -> None:
        with suppress(*_REFUSALS):
            client.nodes_manager.initialize()

    async def _look_async(self, client: Any) -> None:
        await asyncio.to_thread(self._look, client)

    def close(self) -> None:
        """Close the client and the idle lanes."""
        client, self._client = self._client, None
        for lanes in list(self._lanes.values()):
            lanes.close()
        if client is not None:
            client.close()


class AsyncCluster(Cluster):
    """As :class:`Cluster`, on a client of ``redis.asyncio``, for the coroutines of its event loop."""

    async def _opened_async(self) -> Any:
        return await self._opened().initialize()

    async def _look_async(self, client: Any) -> None:
        with suppress(*_REFUSALS):
            await client.nodes_manager.initialize()


def _parts(client: Any, request: RedisRequest) -> list[NodePart]:
    """Return what each node has of a request."""
    if isinstance(request, Asking):
        return [NodePart(node.name, request, [place]) for place, node in enumerate(client.get_primaries())]
    find = client.nodes_manager.get_node_from_slot
    if not isinstance(request, RoundTrip):
        return [NodePart(find(key_slot(request.key)).name, request, [0])]
    places: dict[str, list[int]] = {}
    for place, call in enumerate(request.calls):
        places.setdefault(find(key_slot(call.base)).name, []).append(place)
    return [
        NodePart(node, RoundTrip(request.action, [request.calls[place] for place in mine]), mine)
        for node, mine in places.items()
    ]


def _put(parts: Sequence[NodePart], given: Sequence[Sequence[Any]]) -> tuple[list[Any], bool]:
    """Return the answers in the order of the request, and whether the Cluster may have changed."""
    answers: dict[int, Any] = {}
    for part, mine in zip(parts, given, strict=True):
        answers |= zip(part.places, mine, strict=True)
    has_changed = any(isinstance(answer, _CHANGED) for answer in answers.values())
    for place, answer in answers.items():
        if isinstance(answer, _MOVED):
            answers[place] = exceptions.TryAgainError(f"the slot moves: {answer}")
    return [answers[place] for place in range(len(answers))], has_changed

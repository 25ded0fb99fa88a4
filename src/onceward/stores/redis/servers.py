"""What sends a ledger's requests: to one server, or to the nodes of a Cluster.

A client of redis-py knows which node of a Cluster has which slots, and each node has lanes of its own. What a node refuses while a slot
moves, or cannot answer while another one takes its place, is an error that ends by itself. The client then looks at the Cluster again.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from redis import exceptions
from redis.crc import key_slot

from onceward.stores.lanes import LedgerLanes
from onceward.stores.lanes.refusals import Broken
from onceward.stores.redis.requests import Asking, BellWait, RedisRequest, RoundTrip

MOST_LISTENING: Final = 100  # connections that wait for a bell
_MOVED: Final = (exceptions.MovedError, exceptions.AskError)
_CHANGED: Final = (Broken, *_MOVED, exceptions.ReadOnlyError, exceptions.ClusterDownError)
# A server that takes no writes now, or cannot confirm them: another one may have its address. All else is the request's own.
_LEAVE: Final = re.compile(
    r"\b(ReadOnly|MasterDown|Timeout)Error\b|\b(READONLY|MASTERDOWN|NOREPLICAS|MISCONF)\b"
).search
_FINE: Final = {bytes}  # what a script of a verb answers
_REFUSALS: Final = (exceptions.RedisError, exceptions.RedisClusterException)


class OneServer:
    """The lanes to one server. Who waits for a bell has others: it would hold up the rest. A request raises Broken or redis-py's errors."""

    def __init__(self, make: Callable[[], Any], make_async: Callable[[], Any], most: int, timeout: float) -> None:
        self._calls = LedgerLanes(make, make_async, most, timeout)
        self._bells = LedgerLanes(make, make_async, MOST_LISTENING, timeout)

    def run(self, request: RedisRequest) -> list[Any]:
        """Do one request, and return its answers: errors in the places of what a server refused."""
        lanes = self._bells if type(request) is BellWait else self._calls
        answers: list[Any] = lanes.run(request, _arguments)
        if {*map(type, answers)} != _FINE and (lost := self._lost(answers)):
            return completed(answers, lost, lanes.run(request.whole(lost), _arguments))
        return answers

    async def run_async(self, request: RedisRequest) -> list[Any]:
        lanes = self._bells if type(request) is BellWait else self._calls
        answers: list[Any] = await lanes.run_async(request, _arguments)
        if {*map(type, answers)} != _FINE and (lost := self._lost(answers)):
            return completed(answers, lost, await lanes.run_async(request.whole(lost), _arguments))
        return answers

    def _lost(self, answers: list[Any]) -> list[int]:
        """Return the places of scripts that the server has lost. Leave a server that takes no writes."""
        errors = [f"{type(one).__name__} {one}" if isinstance(one, Exception) else "" for one in answers]
        if any(map(_LEAVE, errors)):
            self.close()
        return [place for place, text in enumerate(errors) if text.startswith("NoScriptError")]

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


class NodePart(NamedTuple):
    """What one node has of a request, and the places of its answers."""

    node: Any
    request: RedisRequest
    places: Sequence[int]


class Cluster:
    """The nodes of a Cluster. ``make`` makes redis-py's client, ``lanes`` returns the lanes to a node."""

    def __init__(self, make: Callable[[], Any], lanes: Callable[[Any], OneServer]) -> None:
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
        client = self._client or await asyncio.to_thread(self._open)
        try:
            parts = _parts(client, request)
            runs = [self._run_part(part) for part in parts]
            replies = await asyncio.gather(*runs) if len(runs) > 1 else [await runs[0]]
            answers, has_changed = _put(parts, replies)
        except exceptions.SlotNotCoveredError:
            await asyncio.to_thread(self._look, client)
            raise
        if has_changed:
            await asyncio.to_thread(self._look, client)
        return answers

    async def _run_part(self, part: NodePart) -> list[Any]:
        try:
            return await self._of(part.node).run_async(part.request)
        except Broken as error:
            return [error] * len(part.places)

    def _of(self, node: Any) -> OneServer:
        return self._lanes.get(node.name) or self._lanes.setdefault(node.name, self._make_lanes(node))

    def _open(self) -> Any:
        client = self._client
        if client is None:
            client = self._client = self._make()
        return client

    def _look(self, client: Any) -> None:
        try:
            client.nodes_manager.initialize()
        except _REFUSALS:  # none of its nodes answers: begin again at the URL
            self._client = None

    def close(self) -> None:
        client, self._client = self._client, None
        for lanes in list(self._lanes.values()):
            lanes.close()
        if client is not None:
            client.close()


Servers = OneServer | Cluster


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

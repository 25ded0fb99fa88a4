"""Writes in a Cluster that replicas must confirm: WAIT speaks of the node and the connection that took the write.

Each node of a request is asked on one connection, one node after the other. What a node refuses while a slot moves, or cannot
answer while another one takes its place, is an error that ends by itself. The Cluster is then looked at again.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from redis import exceptions
from redis.crc import key_slot

from onceward.stores.redis.confirmation import Confirmation
from onceward.stores.redis.conversation import conversed, conversed_on_node

GONE: Final = (exceptions.ConnectionError, exceptions.TimeoutError)
_MOVED: Final = (exceptions.MovedError, exceptions.AskError)
_CHANGED: Final = (*GONE, *_MOVED, exceptions.ReadOnlyError, exceptions.ClusterDownError)
Command = Sequence[object]


def confirmed(client: Any, commands: Sequence[Command], asked: Confirmation) -> list[Any]:
    """Send calls of scripts, and return the answers, or errors in their places; an error also if too few replicas have a write."""
    answers: list[Any] = [None] * len(commands)
    has_changed = False
    for node, numbers in _by_node(client, commands):
        sent = [*(commands[number] for number in numbers), *_confirming(commands[numbers[-1]], asked)]
        try:
            told = _checked(conversed(node.redis_connection.connection_pool, sent), asked)
        except GONE as error:
            told = [error] * len(numbers)
        has_changed |= _put(answers, numbers, told)
    if has_changed:
        with suppress(exceptions.RedisError, exceptions.RedisClusterException):
            client.nodes_manager.initialize()
    return answers


async def confirmed_async(client: Any, commands: Sequence[Command], asked: Confirmation) -> list[Any]:
    """As :func:`confirmed`, for a coroutine."""
    await client.initialize()
    answers: list[Any] = [None] * len(commands)
    has_changed = False
    for node, numbers in _by_node(client, commands):
        sent = [*(commands[number] for number in numbers), *_confirming(commands[numbers[-1]], asked)]
        try:
            told = _checked(await conversed_on_node(node, sent), asked)
        except GONE as error:
            told = [error] * len(numbers)
        has_changed |= _put(answers, numbers, told)
    if has_changed:
        with suppress(exceptions.RedisError, exceptions.RedisClusterException):
            await client.nodes_manager.initialize()
    return answers


def _by_node(client: Any, commands: Sequence[Command]) -> Iterator[tuple[Any, list[int]]]:
    """Yield each node that has some of the slots, and the numbers of its commands."""
    found: dict[str, tuple[Any, list[int]]] = {}
    for number, command in enumerate(commands):
        node = client.nodes_manager.get_node_from_slot(key_slot(_first_key(command)))
        found.setdefault(node.name, (node, []))[1].append(number)
    yield from found.values()


def _first_key(command: Command) -> bytes:
    key = command[3]  # after EVALSHA, the script and the number of keys
    assert isinstance(key, bytes)
    return key


def _confirming(command: Command, asked: Confirmation) -> tuple[Command, Command]:
    """Return a write in the slot of a command, as :meth:`Clients.mark` asks for, and WAIT."""
    shard, brace, _ = _first_key(command).partition(b"}:")
    return ["SET", shard + brace + b"confirmed", b""], asked.command


def _checked(told: list[Any], asked: Confirmation) -> list[Any]:
    """Return the answers without those of the confirmation; errors in their places if there is none."""
    *answers, marked, reached = told
    missing = marked if isinstance(marked, Exception) else asked.missing(reached)
    return answers if missing is None else [one if isinstance(one, Exception) else missing for one in answers]


def _put(answers: list[Any], numbers: list[int], told: list[Any]) -> bool:
    """Put a node's answers in their places. Return whether the Cluster may have changed."""
    for number, answer in zip(numbers, told, strict=True):
        is_moved = isinstance(answer, _MOVED)
        answers[number] = exceptions.TryAgainError(f"the slot moves: {answer}") if is_moved else answer
    return any(isinstance(answer, _CHANGED) for answer in told)

"""Sends commands on one connection of redis-py, and reads all their answers."""

from collections.abc import Sequence
from typing import Any

from redis import exceptions

Command = Sequence[object]


def conversed(pool: Any, commands: Sequence[Command]) -> list[Any]:
    """Send the commands on one connection, and return the answers, or errors in their places.

    redis-py's client itself gives a connection back to its pool with the answers unread, if an interrupt comes before it reads them.
    """
    connection, is_read = pool.get_connection(), False
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        answers = [answer(connection) for _ in commands]
        is_read = True
    finally:
        if not is_read:
            connection.disconnect()
        pool.release(connection)
    return answers


async def conversed_on_node(node: Any, commands: Sequence[Command]) -> list[Any]:
    """As :func:`conversed`, on a node of a Cluster of ``redis.asyncio``, which is its own pool."""
    connection, is_read = node.acquire_connection(), False
    try:
        await connection.send_packed_command(connection.pack_commands(commands))
        answers = [await answer_async(connection) for _ in commands]
        is_read = True
    finally:
        if not is_read:
            await connection.disconnect(nowait=True)
        node.release(connection)
    return answers


def answer(connection: Any) -> Any:
    """Return the next answer, or the error that it is."""
    try:
        return connection.read_response(disable_decoding=True)
    except exceptions.ResponseError as error:
        return error


async def answer_async(connection: Any) -> Any:
    """As :func:`answer`, for a coroutine."""
    try:
        return await connection.read_response(disable_decoding=True)
    except exceptions.ResponseError as error:
        return error

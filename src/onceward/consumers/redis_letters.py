"""Dead letters of Redis Streams: a letter is added, and its entry acknowledged, in one step."""

from collections.abc import Mapping
from typing import Any, Final

# ARGV: group, id of the entry, fields and values of the letter. An error of the first command ends the script before the second one,
# which no transaction (MULTI) does.
_LETTER: Final = """
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3))
redis.call('XACK', KEYS[2], ARGV[1], ARGV[2])
"""
_MOST: Final = 2000  # fields; Lua unpacks fewer than 8000 values


async def add_letter(
    client: Any, dead: str, source: str, group: str, entry: str | bytes, fields: Mapping[Any, Any]
) -> None:
    """Add a letter to the stream ``dead``, and acknowledge its ``entry`` of the stream ``source``: a failover loses both, or none.

    Args:
        client: of redis-py, awaited.
        dead: the stream of the dead letters.
        source: the stream of the entry.
        group: whose entry it is.
        entry: its id.
        fields: of the letter.

    Raises:
        RedisError: the server took neither, or gave no answer.
    """
    if len(fields) > _MOST:
        await client.xadd(dead, fields)  # it is acknowledged afterwards
        return
    flat = [part for pair in fields.items() for part in pair]
    await client.eval(_LETTER, 2, dead, source, group, entry, *flat)

"""Where a ledger keeps its records: in shards, each with its own indexes, and each in one slot of a Redis Cluster.

A verb on one key uses the Redis keys of one shard only. The hash tag of a shard is a number, and the numbers are chosen so
that the slots of the shards are spread evenly. A single server has the same shards, so a ledger can move to a Cluster.
"""

from binascii import crc32, crc_hqx
from typing import Final

from onceward.errors import StoreError

SHARDS: Final = 64
_SLOTS: Final = 16384
# What a shard has beside its records. Sorted sets of keys, but for `roots` (a hash) and `fence` (a number).
INDEXES: Final = (
    "keys",  # all keys, by name
    "ends",  # by expires_at
    "IN_PROGRESS",  # those of this status by name, as the next two
    "RELEASED",
    "PARKED",
    "due",  # those with messages, by due_at
    "unsent",  # those with messages, by name
    "origins",  # root, NUL and key of those that a message caused
    "roots",  # the root of each of those keys
    "fence",  # the largest so far
)


KEYS_OF_A_VERB: Final = 3 + len(INDEXES)


def _tags() -> tuple[str, ...]:
    """Return the first number for each part of the slots."""
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < SHARDS:
        tags.setdefault(crc_hqx(str(number).encode(), 0) % _SLOTS // (_SLOTS // SHARDS), str(number))
        number += 1
    return tuple(tags[part] for part in range(SHARDS))


TAGS: Final = _tags()


class Shard:
    """The Redis keys of one shard.

    Attributes:
        base: what all of them begin with.
        indexes: those of :data:`INDEXES`.
        packed: the same, as they are sent.
    """

    def __init__(self, prefix: str, tag: str) -> None:
        self.base = f"{prefix}:{{{tag}}}:".encode()
        self.indexes = tuple(self.base + name.encode() for name in INDEXES)
        self.packed = b"".join(b"$%d\r\n%b\r\n" % (len(name), name) for name in self.indexes)

    def index(self, name: str) -> bytes:
        """Return the Redis key of one index."""
        return self.indexes[INDEXES.index(name)]

    def keys_of(self, key: bytes) -> tuple[bytes, ...]:
        """Return all Redis keys that a verb on this key uses."""
        return (*self.of_key(key), *self.indexes)

    def of_key(self, key: bytes) -> tuple[bytes, bytes, bytes]:
        """Return those that are of this key alone."""
        base = self.base
        return base + b"record:" + key, base + b"waiting:" + key, base + b"bell:" + key


class RedisNames:
    """The Redis keys of a ledger."""

    def __init__(self, prefix: str) -> None:
        if not prefix or not prefix.isprintable() or not {"{", "}", "*", "?", "[", "]", "\\", " "}.isdisjoint(prefix):
            raise ValueError(f"prefix={prefix!r}: give some characters, without spaces, braces, brackets, *, ? and \\")
        self.prefix = prefix
        self.shards = tuple(Shard(prefix, tag) for tag in TAGS)
        self.meta = self.shards[0].base + b"ledger"

    def shard_of(self, key: bytes) -> Shard:
        """Return the shard of a key."""
        return self.shards[crc32(key) % SHARDS]


def encoded(key: str) -> bytes:
    """Return a key in bytes. StoreError: it is no text."""
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"{key!r}: this key cannot be written in UTF-8: {error}") from error

"""The requests of a Redis ledger: calls of scripts, each on the Redis keys of one shard. All calls of a request are one round trip.

They are what lanes take (:class:`onceward.stores.lanes.line.LaneRequest`). Calls that wait for a lane leave together.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec.msgpack import encode
from redis import exceptions

from onceward.stores.lanes.line import LaneRequest
from onceward.stores.redis.names import KEYS_OF_A_VERB, Shard
from onceward.stores.redis.scripts import Script

_ENDS: Final = frozenset({"swap", "swap_many", "delete"})  # they leave before others


class ScriptCall(NamedTuple):
    """A call of any script.

    Attributes:
        script: the script.
        keys: the Redis keys that it uses, all in one slot.
        arguments: text, bytes and numbers.
    """

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[object] = ()

    @property
    def key(self) -> bytes:
        """What it is about."""
        return self.keys[0]

    @property
    def base(self) -> bytes:
        """What the Redis keys of its shard begin with."""
        return b"".join(self.keys[0].partition(b"}:")[:2])

    @property
    def size(self) -> int:
        """About how many bytes it writes."""
        return 0

    def command(self, *, whole: bool = False) -> list[object]:
        """Return the Redis command. ``whole`` sends the script's text, for a server that does not know it."""
        name, script = ("EVAL", self.script.text) if whole else ("EVALSHA", self.script.sha)
        return [name, script, len(self.keys), *self.keys, *self.arguments]

    def packed(self, *, whole: bool = False) -> bytes:
        """Return the command as it is sent."""
        return packed(self.command(whole=whole))


_HEAD: Final = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%%b\r\n$2\r\n%d\r\n" % (4 + KEYS_OF_A_VERB, KEYS_OF_A_VERB)
_KEY: Final = b"$%d\r\n%b\r\n"
_VERB: Final = _HEAD + 3 * _KEY + b"%b" + _KEY


class WriteCall(NamedTuple):
    """A call of a script that writes a record. It has one argument: a list in MessagePack, which costs less than many arguments.

    Attributes:
        script: the script.
        shard: where the record is.
        key: of the record.
        argument: the list.
    """

    script: Script
    shard: Shard
    key: bytes
    argument: list[Any]

    @property
    def base(self) -> bytes:
        return self.shard.base

    @property
    def size(self) -> int:
        return sum(map(len, self.argument[0]))

    def command(self, *, whole: bool = False) -> list[object]:
        return ScriptCall(self.script, self.shard.keys_of(self.key), [encode(self.argument)]).command(whole=whole)

    def packed(self, *, whole: bool = False) -> bytes:
        """As :meth:`ScriptCall.packed`, mostly without the way through :meth:`command`."""
        if whole:
            return packed(self.command(whole=True))
        record, waiting, bell = self.shard.of_key(self.key)
        sizes = len(record), len(waiting), len(bell)
        text = encode(self.argument)
        return _VERB % (
            self.script.sha, sizes[0], record, sizes[1], waiting, sizes[2], bell, self.shard.packed, len(text), text,
        )  # fmt: skip


def packed(command: Sequence[object]) -> bytes:
    """Return a command as it is sent."""
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    return b"*%d\r\n" % len(parts) + b"".join([_KEY % (len(part), part) for part in parts])


class RedisRequest(LaneRequest):
    """A request. Its reply is the list of the answers, with errors in the places of what the server refused."""

    action = "ask"  # for its events
    each = False  # whether the reply can have a StoreError in the place of an answer
    count = 1  # of the commands
    base: bytes | None = None  # what the Redis keys of a shard begin with that it can write to

    def packed(self) -> bytes:
        """Return the commands as they are sent."""
        raise NotImplementedError

    def whole(self, places: Sequence[int]) -> "RedisRequest":
        """Return a request for some of its calls, with the texts of their scripts."""
        raise NotImplementedError


class RoundTrip(RedisRequest):
    """Calls of scripts. With ``each``, the reply can have a StoreError in the place of an answer."""

    def __init__(
        self, action: str, calls: "Sequence[ScriptCall | WriteCall]", *, each: bool = False, whole: bool = False
    ) -> None:
        self.action, self.calls, self.each, self._whole = action, calls, each, whole
        self.count = len(calls)

    @property
    def kind(self) -> str | None:  # type: ignore[override]
        if self.count > 1:
            return None
        return "whole" if self._whole else "call"

    @property
    def key(self) -> bytes:
        return self.calls[0].key

    @property
    def rank(self) -> int:  # type: ignore[override]
        return int(self.action not in _ENDS)

    @property
    def size(self) -> int:
        return self.calls[0].size

    @property
    def base(self) -> bytes:  # type: ignore[override]
        return self.calls[-1].base

    def packed(self) -> bytes:
        whole = self._whole
        if self.count == 1:
            return self.calls[0].packed(whole=whole)
        return b"".join([call.packed(whole=whole) for call in self.calls])

    def whole(self, places: Sequence[int]) -> "RoundTrip":
        return RoundTrip(self.action, [self.calls[place] for place in places], whole=True)

    def merged(self, requests: Sequence["RoundTrip"]) -> "RoundTrip":
        return _Merged("many", [request.calls[0] for request in requests], whole=self._whole)


class _Merged(RoundTrip):
    """Requests with one call each."""

    def reply(self, rows: Sequence[Any]) -> "KeyReplies":
        return KeyReplies({call.key: [answer] for call, answer in zip(self.calls, rows, strict=True)})


class KeyReplies(NamedTuple):
    """The replies of several requests, by their keys."""

    replies: dict[bytes, list[Any]]


class BellWait(RedisRequest):
    """Wait for an element of a list, so many seconds."""

    action = "wait"

    def __init__(self, key: bytes, seconds: float) -> None:
        self.key, self.seconds = key, seconds

    def packed(self) -> bytes:
        return packed(["BLPOP", self.key, self.seconds])


class Asking(RedisRequest):
    """A plain command for each server of the ledger, such as INFO. The reply is their answers."""

    def __init__(self, command: Sequence[object]) -> None:
        self.command = command

    def packed(self) -> bytes:
        return packed(self.command)


class Confirmation(NamedTuple):
    """The replicas, and the disks, that a write waits for.

    Attributes:
        replicas: how many replicas must have it.
        disk: whether the server, and each of those replicas, must have it in its append-only file on the disk.
        timeout: seconds to wait for them.
    """

    replicas: int
    disk: bool
    timeout: float

    def __bool__(self) -> bool:
        return self.disk or self.replicas > 0

    @property
    def command(self) -> list[object]:
        """The Redis command that waits."""
        milliseconds = round(self.timeout * 1000)
        if self.disk:
            return ["WAITAOF", 1, self.replicas, milliseconds]
        return ["WAIT", self.replicas, milliseconds]

    def missing(self, answer: Any) -> Exception | None:
        """Return the error if the answer to that command says that the write does not count."""
        if isinstance(answer, Exception):
            return answer
        on_disk, reached = answer if self.disk else (1, answer)
        if on_disk and reached >= self.replicas:
            return None
        if not on_disk:
            return exceptions.TimeoutError(
                "the server did not confirm in time that the write is on its disk (disk=yes). The write may still be "
                "kept"
            )
        return exceptions.TimeoutError(
            f"{reached} replica(s) confirmed the write in time, but wait={self.replicas} needs more. The write may "
            "still be kept"
        )

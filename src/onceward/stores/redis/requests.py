"""The requests of a Redis ledger: calls of scripts, each on the Redis keys of one shard. All calls of a request are one round trip."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from msgspec.msgpack import encode

from onceward.stores.redis.names import KEYS_OF_A_VERB, Shard
from onceward.stores.redis.scripts import Script


class Sendable(Protocol):
    """A call of a script, as it is sent."""

    def command(self, *, whole: bool = False) -> list[object]:
        """Return the Redis command. ``whole`` sends the script's text, for a server that does not know it."""

    def packed(self) -> bytes:
        """Return the command as it is sent."""


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

    def command(self, *, whole: bool = False) -> list[object]:
        """As :class:`Sendable`."""
        name, script = ("EVAL", self.script.text) if whole else ("EVALSHA", self.script.sha)
        return [name, script, len(self.keys), *self.keys, *self.arguments]

    def packed(self) -> bytes:
        """As :class:`Sendable`."""
        return packed(self.command())


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
    argument: list[object]

    def command(self, *, whole: bool = False) -> list[object]:
        """As :class:`Sendable`."""
        name, script = ("EVAL", self.script.text) if whole else ("EVALSHA", self.script.sha)
        return [name, script, KEYS_OF_A_VERB, *self.shard.keys_of(self.key), encode(self.argument)]

    def packed(self) -> bytes:
        """As :class:`Sendable`, without the way through :meth:`command`."""
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


class RoundTrip(NamedTuple):
    """One round trip. Its reply is the list of the answers; with ``each``, an answer can be a StoreError."""

    action: str
    calls: Sequence[Sendable]
    each: bool = False


class BellWait(NamedTuple):
    """Wait for an element of a list. The reply tells whether one came."""

    key: bytes
    seconds: float


class Asking(NamedTuple):
    """A plain command for each server of the ledger, such as INFO. The reply is their answers."""

    command: Sequence[object]

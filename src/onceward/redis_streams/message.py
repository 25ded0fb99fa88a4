"""Entries of a stream as deliveries, and as dead letters."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from onceward.consumers.dead_letters import KEY_HEADER, OURS
from onceward.consumers.delivery import Delivery
from onceward.keys.json_reading import NotJson, read_json

# ARGV: group, consumer, milliseconds that the entries then seem idle, ids. Returns the ids that are still this consumer's.
RENEW: Final = """
local mine = {}
for place = 4, #ARGV do
  local id = ARGV[place]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'IDLE', ARGV[3], 'JUSTID')
    mine[#mine + 1] = id
  end
end
return mine
"""

# ARGV: group, consumer, ids. Returns id, fields and receives of the entries that are still this consumer's, as received again.
AGAIN: Final = """
local found = {}
for place = 3, #ARGV do
  local id = ARGV[place]
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2])
  if #pending > 0 then
    local entry = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id)[1]
    found[#found + 1] = {id, entry and entry[2] or false, pending[1][4] + 1}
  end
end
return found
"""

# ARGV: group, consumer, milliseconds, where to begin, how many. Returns where to go on, entries as above, and ids that are gone.
CLAIM: Final = """
local answer = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local found = {}
for _, entry in ipairs(answer[2]) do
  if entry and entry[2] then
    local pending = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)
    found[#found + 1] = {entry[1], entry[2], pending[1][4]}
  end
end
return {answer[1], found, answer[3] or {}}
"""

# ARGV: group, the beginning of names, milliseconds. A consumer that is deleted with pending entries would lose them.
FORGET: Final = """
for _, told in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local one = {}
  for place = 1, #told, 2 do one[told[place]] = told[place + 1] end
  local named = string.sub(one['name'], 1, #ARGV[2]) == ARGV[2]
  if named and one['pending'] == 0 and one['idle'] >= tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], one['name'])
  end
end
"""


DATA: Final = b"__data__"  # the field of the outbox's messages, and of FastStream's


class Envelope(msgspec.Struct):
    """What the field ``__data__`` has."""

    data: str
    headers: dict[str, str] = {}


class StreamEntry(NamedTuple):
    """An entry that a consumer has got; ``receives`` is how often."""

    id: str
    fields: Mapping[bytes, bytes]
    receives: int


def entries_in(raw: Iterable[Any]) -> tuple[list[StreamEntry], list[str]]:
    """Return the entries that a script has found, and the ids of those that are pending, but not in the stream any more."""
    entries = [(name.decode(), fields, receives) for name, fields, receives in raw]
    there = [
        StreamEntry(name, dict(zip(fields[::2], fields[1::2], strict=True)), receives)
        for name, fields, receives in entries
        if fields
    ]
    return there, [name for name, fields, _ in entries if not fields]


def entry_delivery(entry: StreamEntry, stream: str) -> Delivery:
    """Return an entry as a delivery. Its default key is the header ``Idempotency-Key``, or the stream and the entry's id.

    The fields are the payload and the headers, unless there is a ``__data__``.
    """
    envelope = _envelope(entry)
    delivery = Delivery("redis", entry, entry.id, destination=stream)
    if not isinstance(envelope, Envelope):
        fields = {_text(name): _text(value) for name, value in entry.fields.items()}
        delivery.data, delivery.header, delivery.not_json = fields, fields.get, envelope
    else:
        delivery.body, delivery.header = envelope.data, envelope.headers.get
    delivery.key = delivery.header(KEY_HEADER) or f"{stream}/{entry.id}"
    return delivery


def letter_fields(entry: StreamEntry, headers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return the fields of an entry's dead letter: its own with these headers."""
    envelope = _envelope(entry)
    if not isinstance(envelope, Envelope):
        own = {name: value for name, value in entry.fields.items() if _text(name).lower() not in OURS}
        return {**own, **{name.encode(): text.encode() for name, text in headers.items()}}
    same = {name: text for name, text in envelope.headers.items() if name.lower() not in OURS}
    envelope.headers = {**same, **headers}
    return {**entry.fields, DATA: msgspec.json.encode(envelope)}


def _envelope(entry: StreamEntry) -> Envelope | NotJson | None:
    """Return what the field ``__data__`` has, or why it is not JSON; None if there is none, or it is other JSON."""
    if DATA not in entry.fields:
        return None
    try:
        return msgspec.convert(read_json(entry.fields[DATA]), Envelope)
    except NotJson as error:
        return error
    except msgspec.ValidationError:
        return None


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")

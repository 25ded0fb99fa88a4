"""The Kinesis Producer Library's aggregates: many user records in one Kinesis record.

The format is described in "KPL Aggregated Record Format" (awslabs/amazon-kinesis-producer, aggregation-format.md): four bytes
of magic, a protobuf message, and the MD5 of that message. Data without all three is a plain record. The message is ::

    message AggregatedRecord { repeated string partition_key_table = 1; repeated string explicit_hash_key_table = 2;
                               repeated Record records = 3; }
    message Record { required uint64 partition_key_index = 1; optional uint64 explicit_hash_key_index = 2;
                     required bytes data = 3; repeated Tag tags = 4; }
"""

from collections.abc import Iterator
from hashlib import md5
from typing import Final

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST = 16  # bytes of an MD5
_LONGEST_VARINT = 10  # bytes of 64 bits, seven in each

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types; the other two are obsolete


UserRecord = tuple[str, str | None, bytes]  # partition key, explicit hash key, data


def user_records(data: bytes) -> list[UserRecord] | None:
    """Return the records of an aggregate, or None when ``data`` is a plain record.

    Raises:
        ValueError: its magic and digest are those of an aggregate, but its message cannot be read.
    """
    message = data[len(MAGIC) : -_DIGEST]
    if not data.startswith(MAGIC) or not message:
        return None
    if md5(message, usedforsecurity=False).digest() != data[-_DIGEST:]:
        return None
    parts = [[_as_bytes(value) for number, value in _fields(message) if number == wanted] for wanted in (1, 2, 3)]
    partition_keys, hash_keys = ([key.decode() for key in table] for table in parts[:2])
    return [_user_record(record, partition_keys, hash_keys) for record in parts[2]]


def _user_record(message: bytes, partition_keys: list[str], hash_keys: list[str]) -> UserRecord:
    fields = dict(_fields(message))
    if 3 not in fields:
        raise ValueError("a record of the aggregate has no data")
    hash_key = _entry(hash_keys, fields[2]) if 2 in fields else None
    return _entry(partition_keys, fields.get(1)), hash_key, _as_bytes(fields[3])


def _entry(table: list[str], index: object) -> str:
    if not isinstance(index, int) or index >= len(table):
        raise ValueError(f"a record of the aggregate names entry {index!r} of a table of {len(table)}")
    return table[index]


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field of the aggregate is a number and must be bytes")  # it is bad data
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field (protobuf.dev/programming-guides/encoding)."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, place = _varint(message, place)
        elif kind in {_FIXED64, _FIXED32}:
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"the aggregate has a field of the wire type {kind}")
        if place + length > len(message):
            raise ValueError("the aggregate ends within a field")
        yield tag >> 3, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = 0
    for offset in range(_LONGEST_VARINT):
        if place + offset >= len(message):
            raise ValueError("the aggregate ends within a number")
        byte = message[place + offset]
        number |= (byte & 0x7F) << 7 * offset
        if byte < 0x80:
            return number, place + offset + 1
    raise ValueError("the aggregate has a number of more than 64 bits")

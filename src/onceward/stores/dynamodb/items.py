"""Records as DynamoDB items: one attribute a field, readable in the console, under names that can be mapped."""

import re
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from onceward.core.record import Record
from onceward.errors import StoreError

Value = Mapping[str, Any]
Item = dict[str, Value]

COMPRESS_OVER: Final = 4096  # bytes of a result; shorter ones stay readable, longer ones cost a write unit per KB
# Bytes that a compressed result may have: a few KB can be made to unfold to gigabytes
UNPACKED: Final = 64 * 1024 * 1024
SHARDS: Final = 8  # of an index: one takes 500 records a second
_SHARD: Final = "due_shard"
_ALWAYS: Final = {  # never None
    field: Record._fields.index(field)
    for field in ("status", "owner", "fence", "beat", "lease_until", "attempts", "created_at")
}
_always = itemgetter(*_ALWAYS.values())
_ABSENT: Final = tuple.__new__(Record, [None] * len(Record._fields))  # before the first write
_RESULT: Final = Record._fields.index("result") - 1
NULL: Final[Value] = {"NULL": True}
_TEMPLATE = re.compile(r"([^={}]+)=([^{}]*)(\{key\})?").fullmatch


class KeyPart(NamedTuple):
    """One key attribute: its name, and its value: a prefix plus the record's key, or a constant text."""

    name: str
    prefix: str
    holds_key: bool

    @classmethod
    def parse(cls, text: str) -> "KeyPart":
        """Read ``name=prefix{key}`` or ``name=text``; raises ValueError."""
        match = _TEMPLATE(text)
        if match is None or not (match[2] or match[3]):  # DynamoDB takes no empty key
            raise ValueError(
                f"{text!r}: write a key attribute as name={{key}}, name=prefix{{key}} or name=text, as in pk=ONCE#{{key}}"
            )
        return cls(match[1], match[2], match[3] is not None)


class Layout:
    """How a table stores records.

    Args:
        partition: the partition key, as ``name={key}`` or ``name=prefix{key}``, or ``name=text`` when the sort key
            holds the record's key.
        sort: the sort key of a table that has one, in the same form.
        names: attribute names for fields of the record, where they differ from the fields' own.

    Raises:
        ValueError: neither key attribute, or both, hold the record's key; or ``names`` has an unknown field, or one twice.

    Attributes:
        expiry: the attribute for DynamoDB's TTL.
        attributes: all attributes that an item may have beside its key.
        marks: attributes that each item has; an item without them is not ours.
        shared: whether the table also has another system's records, with other attributes.
        shard: the attribute by which an index finds a record with unsent messages.
    """

    shared = False
    shard = _SHARD

    def __init__(
        self,
        partition: str = "key={key}",
        sort: str | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.parts = tuple(KeyPart.parse(text) for text in (partition, sort) if text is not None)
        holding = [part for part in self.parts if part.holds_key]
        if len(holding) != 1:
            raise ValueError(
                f"partition={partition!r}, sort={sort!r}: exactly one of the two must hold the record's key, as in "
                "partition='pk=ONCE#{key}', sort='sk=LOCK'"
            )
        self.holder = holding[0]
        self._constant: Item = {part.name: {"S": part.prefix} for part in self.parts}
        self.names = _checked_names(names or {})
        self.expiry = self.names["expires_at"]
        names_of = tuple(self.names.values())
        self._columns = tuple((name, *form) for name, form in zip(names_of, _FORMS, strict=True))
        check_apart([*(part.name for part in self.parts), *names_of, _SHARD])
        self.attributes: tuple[str, ...] = (*names_of, _SHARD)
        # Ledgers that share a table differ by the texts in its key.
        self._shards = "/".join(part.prefix for part in self.parts if part.prefix)
        self.marks: tuple[str, ...] = tuple(self.names[field] for field in _ALWAYS)
        self._version = (self.names["owner"], self.names["fence"], self.names["beat"])

    def key(self, key: str) -> Item:
        """Return the key attributes of a record."""
        return {**self._constant, self.holder.name: {"S": self.holder.prefix + key}}

    def shard_text(self, shard: int) -> str:
        """Return what items of a shard have in that attribute."""
        return f"{self._shards}/{shard}" if self._shards else str(shard)

    def _shard_of(self, record: Record) -> Value:
        if record.due_at is None:
            return NULL
        return {"S": self.shard_text(zlib.crc32(record.key.encode()) % SHARDS)}

    def key_in(self, item: Mapping[str, Value]) -> str:
        """Return the record's key of an unreadable item, as far as it can be found."""
        value = item.get(self.holder.name)
        text = value.get("S") if isinstance(value, Mapping) else None
        return text[len(self.holder.prefix) :] if isinstance(text, str) else "?"

    def version_of(self, seen: Record) -> dict[str, Value | None]:
        """Return the attributes that a conditional write compares, as they were seen; None stands for an absent one."""
        owner, fence, beat = self._version
        return {owner: {"S": seen.owner}, fence: {"N": str(seen.fence)}, beat: {"N": str(seen.beat)}}

    def item(self, record: Record, seen: Record | None = None) -> Item:
        """Return a record as an item, without fields that are None.

        With the record ``seen``, return only the attributes that change, and NULL for those that go.
        """
        before = _ABSENT if seen is None else seen
        item: Item = {} if seen is not None else self.key(record.key)
        for (name, kind, write, _), value, was in zip(self._columns, record[1:], before[1:], strict=True):
            if value is not was and value != was:
                item[name] = NULL if value is None else {kind: value if write is None else write(value)}
        if record.result is not None and record.result != before.result:
            item[self.names["result"]] = _packed(record.result)
        if record.due_at != before.due_at:
            item[self.shard] = self._shard_of(record)
        return item

    def record(self, item: Mapping[str, Mapping[str, Any]]) -> Record:
        """Return an item as a record.

        Raises:
            StoreError: the item is not one of onceward's.
        """
        try:
            fields = [
                read(held[kind]) if (held := item.get(name)) is not None and kind in held else None
                for name, kind, _, read in self._columns
            ]
            fields[_RESULT] = _unpacked(item.get(self.names["result"]))
            fields.insert(0, item[self.holder.name]["S"][len(self.holder.prefix) :])
            if None in _always(fields):
                raise KeyError(next(self.names[field] for field, place in _ALWAYS.items() if fields[place] is None))
            return tuple.__new__(Record, fields)  # as in Write.at
        except (KeyError, ValueError, TypeError, zlib.error) as error:
            raise StoreError(
                f"an item in the ledger's table is not a record of onceward ({reason(error)}): give the ledger a table or a key "
                "prefix of its own, or map the table's attributes with a preset or names"
            ) from error


def _checked_names(names: Mapping[str, str]) -> dict[str, str]:
    fields = Record._fields[1:]
    unknown = names.keys() - set(fields)
    if unknown:
        raise ValueError(f"names: unknown field {', '.join(sorted(unknown))}; there are {', '.join(fields)}")
    return {field: names.get(field, field) for field in fields}


def check_apart(attributes: Sequence[str]) -> None:
    """Raise ValueError if an attribute has two meanings."""
    twice = sorted({name for name in attributes if attributes.count(name) > 1})
    if twice:
        raise ValueError(f"names: two fields would share the attribute {', '.join(twice)}")


def reason(error: Exception) -> str:
    """Return what is wrong with an item, without its content, which may be private."""
    return f"{type(error).__name__}: {str(error)[:100]}"


_digits = msgspec.json.Encoder().encode  # of a float, in a fifth of the time of repr


def number(value: float) -> str:
    """Return a float as DynamoDB's decimal text, which reads back as the same float."""
    return str(int(value)) if value.is_integer() else _digits(value).decode()


def _packed(result: str) -> Value:
    if len(result) > COMPRESS_OVER:
        raw = result.encode()
        if len(raw) <= UNPACKED and len(content := zlib.compress(raw, 6)) < len(result):
            return {"B": content}
    return {"S": result}


def _unpacked(value: Value | None) -> str | None:
    if value is None:
        return None
    if "S" in value:
        return str(value["S"])
    content = value.get("B")
    if content is None:  # NULL, or an object in S3 (blobs.py)
        return None
    raw = content if isinstance(content, bytes) else b64decode(content)
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(raw, UNPACKED + 1)
    if len(text) > UNPACKED:
        raise ValueError(f"its compressed result is over {UNPACKED} bytes")
    if not unpacking.eof:
        raise ValueError("its compressed result is cut short")
    return text.decode()


_NUMBERS: Final[dict[str, Callable[[str], float]]] = {
    **dict.fromkeys(("fence", "beat", "attempts"), int),
    **dict.fromkeys(("lease_until", "created_at", "expires_at", "updated_at", "due_at"), float),
}
# Of each field but the key: DynamoDB's type, how it is written (None: as it is), and how it is read.
_FORMS: Final[tuple[tuple[str, Callable[[Any], str] | None, Callable[[str], Any]], ...]] = tuple(
    ("N", number if _NUMBERS[name] is float else str, _NUMBERS[name]) if name in _NUMBERS else ("S", None, str)
    for name in Record._fields[1:]
)

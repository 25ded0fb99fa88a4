"""Records in another system's table, each in one item with that system's own attributes.

An item holds two accounts of one key. Ours, under ``onceward_…``, is the whole record. Theirs, under the other system's
names, is what that system must see: :meth:`Beside.shown` computes it from the record alone. One rule decides which is true:
ours holds as long as theirs matches it. Any write of the other system breaks the match. A put of a whole item removes our
account; an update leaves it, but changes theirs. From then on the item is foreign, and their account is the truth.

A foreign item has no version of ours. Its record has the beat -1, which none of ours has. Its owner is the seen attributes
as text, and a write is conditioned on each of them. Its fence is the time (in microseconds) at which it may be taken. That
time has passed when it is taken, so later fences, stamped with the server's time, are larger.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED, Record
from onceward.errors import KeyMissing, StoreError
from onceward.keys.ledger_keys import ledger_key
from onceward.stores.dynamodb.blobs import PLACE, is_large
from onceward.stores.dynamodb.items import NULL, Item, Layout, Value, check_apart

FOREVER: Final = 253_370_764_800  # the year 9999 in seconds, for systems that need a number for "never"
_OURS: Final = "onceward_"
_FOREIGN: Final = -1
ESCAPE: Final = ":"  # neither a ledger's key nor one of their ids starts with it
_TAGGED: Final = '{"$onceward":'  # start of results that only our codec reads (codec.py)


class Beside(Layout, ABC):
    """A layout of items that another system reads and writes too.

    Args:
        partition: the partition key, as :class:`Layout` takes it.
        sort: the sort key, in the same form.
        names: the table's names of attributes, theirs or ours, by the usual names.
        theirs: the usual names of their attributes: status, expiry, result, and any others.

    Raises:
        ValueError: as :class:`Layout`; or ``names`` has an unknown attribute.
    """

    means: Mapping[str, str]  # their statuses: our equivalents

    def __init__(
        self, partition: str, sort: str | None, names: Mapping[str, str] | None, theirs: Sequence[str]
    ) -> None:
        ours = {field: f"{_OURS}{field}" for field in Record._fields[1:] if field != "result"}
        usual = [*theirs, *ours.values()]
        given = names or {}
        if unknown := given.keys() - set(usual):
            raise ValueError(f"names: unknown attribute {', '.join(sorted(unknown))}; there are {', '.join(usual)}")
        self.theirs = {name: given.get(name, name) for name in theirs}
        status, expiry, result, *more = self.theirs.values()
        super().__init__(partition, sort, {f: given.get(n, n) for f, n in ours.items()} | {"result": result})
        self.shard = None
        self.attributes = (status, expiry, *more, *self.names.values())
        check_apart([*(part.name for part in self.parts), *self.attributes])
        self._compared = (status, expiry, *more)
        self._stale = self.version  # what remains of our account in an item that they changed
        self.status, self.expiry = status, expiry
        self.marks = ()
        self.version = (*self.version, status, expiry)

    # --- for each system to define -----------------------------------------------------------------------

    @abstractmethod
    def shown(self, record: Record) -> Item:
        """Return the attributes that the other system must see for a record: status, expiry and all that it decides by."""

    def lease_of(self, item: Mapping[str, Value]) -> tuple[float, float | None]:
        """Return when a claim of theirs can be taken over, and when it then expires (seconds; None means never)."""
        expiry = seconds(item.get(self.expiry))
        return (FOREVER if expiry is None else expiry), None

    def id_of(self, key: str) -> str:
        """Return the key attribute's value for a key of the ledger."""
        return key

    def key_of(self, text: str) -> str:
        """Return the ledger's key for a key attribute: ``key_of(id_of(key)) == key`` for every key."""
        return text

    def key(self, key: str) -> Item:
        return super().key(self.id_of(key))

    def item(self, record: Record, seen: Record | None = None) -> Item:
        """As :meth:`Layout.item`, with both accounts. All attributes change, because each field can change theirs."""
        item = super().item(record)
        item |= self.shown(record)
        if record.result is not None and is_plain(record):
            item[self.names["result"]] = {"S": record.result}
        return item if seen is None else {name: item.get(name, NULL) for name in self.attributes}

    def record(self, item: Mapping[str, Value]) -> Record:
        """Return an item as a record, from the account that holds.

        Raises:
            StoreError: neither account is valid.
        """
        record = self._by_ours(item) or self._by_theirs(item)
        return record._replace(key=self.key_of(record.key))

    def version_of(self, seen: Record) -> dict[str, Value]:
        """As :meth:`Layout.version_of`, with their attributes: our writes are made only while our account holds."""
        shown = self.shown(seen)
        return {**super().version_of(seen), ":v0": shown[self.status], ":v1": shown[self.expiry]}

    def is_foreign(self, seen: Record | None) -> bool:
        return seen is not None and seen.beat == _FOREIGN

    def as_seen(self, seen: Record) -> Mapping[str, Value | None]:
        return cast("Mapping[str, Value | None]", json.loads(seen.owner))

    def _by_ours(self, item: Mapping[str, Value]) -> Record | None:
        if self.names["owner"] not in item:
            return None
        record = super().record(item)
        shown = self.shown(record)
        return record if all(_given(item.get(name)) == shown.get(name) for name in self._compared) else None

    def _by_theirs(self, item: Mapping[str, Value]) -> Record:
        told = item.get(self.status, {}).get("S")
        status = self.means.get(str(told))
        if status is None:
            raise StoreError(
                f"an item in the ledger's table has the {self.status} {told!r}, which this layout does not know. It knows "
                f"{', '.join(self.means)}. Change or delete the item {json.dumps(self._key_in(item))}, or give the ledger a "
                "table or a key prefix of its own"
            )
        seen = {name: item.get(name) for name in (*self._compared, *self._stale)}
        until, expires = self.lease_of(item)
        result = error = None
        if status != IN_PROGRESS:
            expires = seconds(item.get(self.expiry))
            until = min(until, FOREVER if expires is None else expires)
        if status == COMPLETED:
            result, error = as_json(item.get(self.names["result"]))
        elif status == RELEASED:
            error = f"recorded as {told} by another system"
        taken = until if status == IN_PROGRESS else (expires or 0.0)
        return Record(
            key=cast("str", item[self.holder.name]["S"])[len(self.holder.prefix) :],
            status=status,
            owner=json.dumps(seen, separators=(",", ":")),
            fence=int(taken * 1e6),
            beat=_FOREIGN,
            lease_until=until,
            attempts=1,
            fingerprint=None,
            result=result,
            error=error,
            created_at=until,  # their items have no time of creation; this is the earliest time that they have
            expires_at=expires,
        )

    def key_in(self, item: Mapping[str, Value]) -> str:
        return self.key_of(super().key_in(item))

    def _key_in(self, item: Mapping[str, Value]) -> Item:
        return {part.name: item.get(part.name, {}) for part in self.parts}


def whole(expires_at: float | None) -> int:
    """Return an expiry in whole seconds, rounded up. "Never" is the year 9999."""
    return FOREVER if expires_at is None else math.ceil(expires_at)


def is_plain(record: Record) -> bool:
    """Return whether a record is completed with a result that is plain JSON in its item, so that others can replay it."""
    result = record.result
    if record.status != COMPLETED or result is None or result.startswith((_TAGGED, PLACE)):
        return False
    return not is_large({"S": result})


def seconds(value: Value | None, unit: float = 1.0) -> float | None:
    """Return a number attribute, counted in ``unit`` seconds, as seconds; None if there is none."""
    text = None if value is None else value.get("N")
    return None if text is None else float(cast("str", text)) * unit


def as_json(value: Value | None) -> tuple[str | None, str | None]:
    """Return their result as JSON text and None, or None and the reason why it cannot be replayed.

    Text that is JSON stays as it is. Other text is a str. No result is None, as for them.
    """
    given = _given(value)
    if given is not None and "S" in given:
        text = cast("str", given["S"])
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return json.dumps(text), None
        return text, None
    try:
        return json.dumps(None if given is None else _native(given)), None
    except ValueError as error:
        return None, f"its result, of another system, cannot be replayed: {error}"


def _native(value: Mapping[str, Any]) -> object:
    ((kind, content),) = value.items()
    if kind in {"S", "BOOL"}:
        return content
    if kind == "NULL":
        return None
    if kind == "N":
        return int(content) if content.lstrip("-").isdigit() else float(content)
    if kind == "L":
        return [_native(part) for part in content]
    if kind == "M":
        return {name: _native(part) for name, part in content.items()}
    raise ValueError(f"JSON has no type for DynamoDB's {kind}")


def _given(value: Value | None) -> Value | None:
    """Return None for an attribute that is NULL, because a batch writes NULL where a put writes nothing."""
    return None if value is None or "NULL" in value else value


def unquoted(form: str) -> str:
    """Return the str from which a part of a ledger's key was made; any other part is returned as it is."""
    if not form.startswith('"'):
        return form
    try:
        return str(json.loads(form))
    except ValueError:
        return form


def key_of_text(name: str, text: str) -> str:
    """Return the ledger's key of a str, even of one that guards refuse, such as an empty one."""
    try:
        return ledger_key(name, text)
    except KeyMissing:
        return f"{name}:{json.dumps(text)}"

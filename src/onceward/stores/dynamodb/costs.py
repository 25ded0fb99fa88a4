"""Requests, capacity units and storage of a workload (:data:`onceward.stores.capabilities.COSTS`).

A write costs a unit for each KB of the item, before or after it, whichever is larger. A refused condition costs the same, and a
transaction twice as much. An eventually consistent read costs half a unit for each 4 KB (Developer Guide, "DynamoDB read and write
operations"). The sizes are those of items that the store itself makes.
"""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Final, NamedTuple

import msgspec

from onceward.core.record import COMPLETED, IN_PROGRESS, Record
from onceward.results.step_entries import Entry, text_of
from onceward.stores.costs import Way, Workload
from onceward.stores.dynamodb.batch import STATEMENTS
from onceward.stores.dynamodb.items import Item, Layout, Value
from onceward.stores.dynamodb.store import DynamoStore

_NOW: Final = 1767225600.123456  # any time has as many digits
_WORKER: Final = "ip-10-0-123-123.eu-west-1/12345"
_STORED: Final = 100  # bytes that DynamoDB adds to each item ("DynamoDB pricing")
_EFFECT: Final = 1.0  # what one small write of yours costs more within a transaction


class _Sizes(NamedTuple):
    """Write units of a record's writes, and read units of an eventually consistent read of it."""

    claim: int
    steps: tuple[int, ...]
    completed: int
    bytes: int
    read: float


class Peer(NamedTuple):
    """What another library asks for, as benchmarks/dynamodb.py measures it.

    Attributes:
        name: its name and version.
        item: bytes of its item, without key and result.
        duplicate: requests of a duplicate.
        reads: consistent reads among them.
    """

    name: str
    item: int
    duplicate: int
    reads: int


PEERS: Final = (Peer("Powertools 3.37", 75, 1, 0), Peer("idemkit 1.0", 255, 2, 1))


def costs(store: DynamoStore, load: Workload) -> list[Way]:
    """Return what each way of using the table asks for, a day. The first is the plain one, and the last are other libraries."""
    ways = [*_ours(store.layout, load), *(_peer(one, load) for one in PEERS)]
    return sorted(ways, key=lambda way: not way.name.startswith("onceward"))


def _ours(layout: Layout, load: Workload) -> Iterator[Way]:
    plain = _sizes(layout, load._replace(steps=0))
    first, again = load.firsts, load.again
    stored = first * load.retention / 86400 * (plain.bytes + _STORED)
    once = plain.claim + plain.completed
    opened = 2 if layout.lists_open else 0  # the index is written by the claim, and by the completion
    name = "onceward, index=open" if opened else "onceward"
    base = Way(name, 2 * first + again, (once + opened) * first + plain.completed * again, 0, 0, stored)
    yield base
    probed = base.writes - plain.completed * again
    yield base._replace(
        name="onceward, probe=read",
        requests=3 * first + again,
        writes=probed,
        reads=first * 0.5 + again * plain.read,
    )
    asked = again * (1 - load.remembered)
    yield base._replace(
        name="onceward, cache",
        requests=2 * first + asked,
        writes=base.writes - plain.completed * (again - asked),
    )
    yield base._replace(name="onceward, transact", writes=base.writes + (plain.completed + _EFFECT) * first)
    if load.steps:
        sizes = _sizes(layout, load)
        more = sum(sizes.steps) + sizes.completed - plain.completed + (load.steps if opened else 0)
        yield base._replace(
            name=f"onceward, {load.steps} steps",
            requests=base.requests + load.steps * first,
            writes=base.writes + more * first + (sizes.completed - plain.completed) * again,
            stored=first * load.retention / 86400 * (sizes.bytes + _STORED),
        )
    if load.batch > 1:
        yield _batched(base, plain, load)
    if not opened:
        yield base._replace(name="onceward, index=open", writes=base.writes + 2 * first)


def _batched(base: Way, sizes: _Sizes, load: Workload) -> Way:
    """Return what batches ask for: two requests for each 25, and one that reads what refused them."""
    size, share = load.batch, load.duplicates
    batches = load.messages / size
    fresh = size * (1 - share)
    requests = ceil(size / STATEMENTS) + max(1, ceil(fresh / STATEMENTS)) * (share < 1) + (1 - (1 - share) ** size)
    reads = load.again * 2 * sizes.read  # a consistent read costs twice
    return base._replace(name=f"onceward, batches of {size}", requests=batches * requests, reads=reads)


def _peer(peer: Peer, load: Workload) -> Way:
    size = peer.item + load.key + load.result
    first, again = load.firsts, load.again
    return Way(
        peer.name,
        2 * first + peer.duplicate * again,
        (_units(peer.item + load.key) + _units(size)) * first + _units(size) * again,
        peer.reads * ceil(size / 4096) * again,
        0,
        first * load.retention / 86400 * (size + _STORED),
    )


def _sizes(layout: Layout, load: Workload) -> _Sizes:
    claimed = Record(
        key="k" * load.key,
        status=IN_PROGRESS,
        owner="0" * 32,
        fence=int(_NOW * 1e6),
        beat=0,
        lease_until=_NOW,
        attempts=1,
        fingerprint=None,
        result=None,
        error=None,
        created_at=_NOW,
        expires_at=_NOW,
        updated_at=_NOW,
        worker=_WORKER,
    )
    taken: dict[str, Entry] = {}
    steps: list[int] = []
    record = claimed
    for number in range(load.steps):
        name = f"step-{number}"
        taken[name] = Entry(
            name, 1, at=_NOW, took=0.123, worker=_WORKER, result=msgspec.Raw(_json(load.result).encode())
        )
        record = claimed._replace(steps=text_of(taken))
        steps.append(_units(item_bytes(layout.item(record))))
    done = record._replace(status=COMPLETED, result="", beat=1)
    size = item_bytes(layout.item(done)) + load.result  # as it is stored: compressed, if it is long
    claim = _units(item_bytes(layout.item(claimed)))
    return _Sizes(claim, tuple(steps), _units(size), size, ceil(size / 4096) / 2)


def _json(size: int) -> str:
    return f'"{"x" * max(0, size - 2)}"'


def _units(size: int) -> int:
    return max(1, ceil(size / 1024))


def item_bytes(item: Item | Mapping[str, Value]) -> int:
    """Return the size of an item as DynamoDB counts it (Developer Guide, "DynamoDB item sizes and formats")."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Value) -> int:
    ((kind, held),) = value.items()
    if kind == "S":
        return len(str(held).encode())
    if kind == "B":
        return len(held) if isinstance(held, bytes) else len(str(held)) * 3 // 4
    return (len(str(held).strip("-0").replace(".", "")) + 1) // 2 + 1 if kind == "N" else 1

"""The facts about a ledger's table in DynamoDB, and what they mean."""

import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple

from onceward.core.drivers import Steps, drive
from onceward.stores.dynamodb.create import (
    SWITCHED_ON,
    Document,
    Keys,
    key_text,
    keys_of,
)
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.stores.dynamodb.table import DynamoTable
from onceward.stores.inspection import Finding, Gaps, Level
from onceward.wire.calls import Call, ServiceAnswer, code_of

_TTL: Final = "DynamoDB Developer Guide, Using time to live (TTL) in DynamoDB"
_RESTORE: Final = "DynamoDB Developer Guide, Point-in-time backups for DynamoDB"
_GLOBAL: Final = "DynamoDB Developer Guide, Global tables: how they work"
_STAY: Final = "expired records stay, and are charged, until `onceward purge` deletes them"
_TIMES = ("lease_until", "created_at", "fence")  # fields of a record that DynamoDB could take for a time to delete it


class Table(NamedTuple):
    """A ledger in DynamoDB."""

    url: str
    name: str = "ledger"
    status: str | None = "ACTIVE"  # the table's status; None if there is no table, "" if it could not be read
    keys: Keys = (("key", "S"),)  # its key attributes with their types, HASH first
    expected: Keys = (("key", "S"),)  # the ledger's key attributes
    ttl: str | None = "expires_at"  # the attribute of its TTL; "" if it is off, None if unknown
    expiry: str = "expires_at"  # the attribute by which the ledger's records expire
    times: frozenset[str] = frozenset()  # attributes of the ledger's records that hold other times
    recovers: bool | None = True  # whether it can be restored to a point in time; None if unknown
    regions: tuple[str, ...] = ()  # other regions whose replica may lag behind
    gaps: tuple[Finding, ...] = ()  # what could not be checked

    @property
    def is_local(self) -> bool:
        return False

    def findings(self) -> Iterator[Finding]:
        yield from self.gaps
        if self.status != "":
            yield from _check(self)


def _check(ledger: Table) -> Iterator[Finding]:
    """Check that there is a table, and that it is one for this ledger."""
    if ledger.status is None:
        says, why = f"there is no table of {ledger.url} in this region", "no handler runs without its ledger"
        fix = f"create it with `onceward init --store {shlex.quote(ledger.url)}`, or check the name and the region"
        yield Finding("error", "table", says, why, fix)
    elif ledger.keys != ledger.expected:
        says = f"the table's key is {key_text(ledger.keys)}, and that of {ledger.url} is {key_text(ledger.expected)}"
        fix = "give the ledger another table, or say in its URL how records stand in this one (docs/how-to/migrate.md)"
        yield Finding("error", "key schema", says, "DynamoDB refuses every write", fix)
    elif ledger.status not in {"ACTIVE", "UPDATING"}:
        says = f"the table of {ledger.url} is {ledger.status}"
        yield Finding("error", "table", says, "it takes no writes", "wait until it is ACTIVE")
    else:
        yield Finding("ok", "table", f"{ledger.url} is {ledger.status}, key {key_text(ledger.keys)}")
        for check in (_expiry, _recovery, _regions):
            yield from check(ledger)


def _expiry(ledger: Table) -> Iterator[Finding]:
    if ledger.ttl is None:
        return
    if ledger.ttl == ledger.expiry:
        yield Finding("ok", "TTL", f"on {ledger.ttl}")
        return
    why, switched = _STAY, f"`onceward init --ttl --store {shlex.quote(ledger.url)}`"
    if not ledger.ttl:
        fix = (
            f"{switched}; DynamoDB then deletes every item whose {ledger.expiry} is a time in the past, also those that are none "
            "of this ledger's"
        )
        yield Finding("warning", "TTL", f"the table of {ledger.url} has none", why, fix, _TTL)
        return
    level: Level = "warning"
    if ledger.ttl in ledger.times:
        level, why = "error", "DynamoDB deletes records that are still needed"
    says = f"the table's is on {ledger.ttl}, and records of {ledger.url} expire by {ledger.expiry}"
    fix = (
        f"give the ledger another table, or switch the TTL of {ledger.name} in this region off with `aws dynamodb "
        f"update-time-to-live`, and an hour later on for {ledger.expiry} with {switched}"
    )
    yield Finding(level, "TTL", says, why, fix, _TTL)


def _recovery(ledger: Table) -> Iterator[Finding]:
    check = "point-in-time recovery"
    if ledger.recovers:
        yield Finding("ok", check, "on")
    elif ledger.recovers is False:
        why = "when it is deleted or damaged, everything that was done can be done again"
        how = f"`aws dynamodb update-continuous-backups` for the table {ledger.name} of this region"
        fix = f"switch it on with {how}; it is charged by the table's size"
        yield Finding("warning", check, f"the table of {ledger.url} has none", why, fix, _RESTORE)


def _regions(ledger: Table) -> Iterator[Finding]:
    if ledger.regions:
        says = f"the table of {ledger.url} has replicas in {', '.join(ledger.regions)}"
        why = "unless they are strongly consistent, a key that is claimed in one region can be claimed in another a moment later"
        fix = "let all consumers of a queue use the table in one region, or make it strongly consistent (MRSC)"
        yield Finding("warning", "global table", says, why, fix, _GLOBAL)


def inspect(store: DynamoTable) -> Table:
    """Return the facts (:data:`onceward.stores.capabilities.INSPECT`)."""
    gaps = Gaps()

    def ask(check: str, action: str, *, is_needed: bool = True) -> Document | None:
        return gaps.read(check, lambda: drive(_answer(store, action), store), is_needed=is_needed)

    layout = store.layout
    expected = tuple((part.name, "S") for part in layout.parts)
    times = frozenset(layout.names[field] for field in _TIMES)
    table = Table(store.url, store.requests.table, status=None, expected=expected, expiry=layout.expiry, times=times)
    answer = ask("table", "DescribeTable")
    if answer is None:
        return table._replace(status="", gaps=tuple(gaps.findings))
    if not answer:
        return table
    described = answer["Table"]
    ttl = ask("TTL", "DescribeTimeToLive")
    backups = ask("point-in-time recovery", "DescribeContinuousBackups", is_needed=False)
    return table._replace(
        status=described["TableStatus"],
        keys=keys_of(described),
        ttl=None if ttl is None else _ttl(ttl),
        recovers=None if not backups else _recovers(backups),
        regions=_lagging(described),
        gaps=tuple(gaps.findings),
    )


def _answer(store: DynamoTable, action: str) -> Steps[Document]:
    """Ask about a table. The answer is empty if there is none.

    Raises:
        StoreError: it was refused, or no answer came.
    """
    call = Call(DYNAMODB, action, {"TableName": store.requests.table})
    answer: ServiceAnswer = yield from store.ask(call, accept=400)
    if answer.status == 200:
        return dict(answer.body)
    if code_of(answer) == "ResourceNotFound":
        return {}
    raise store.failure(call, answer)


def _ttl(answer: Document) -> str:
    """Return the attribute that a TTL is on, or "" when it is off."""
    described = answer.get("TimeToLiveDescription", {})
    return str(described.get("AttributeName", "")) if described.get("TimeToLiveStatus") in SWITCHED_ON else ""


def _recovers(answer: Document) -> bool:
    description = answer.get("ContinuousBackupsDescription", {}).get("PointInTimeRecoveryDescription", {})
    return bool(description.get("PointInTimeRecoveryStatus") == "ENABLED")


def _lagging(described: Document) -> tuple[str, ...]:
    """Return the regions of replicas that are not strongly consistent (DynamoDB API Reference, TableDescription)."""
    if described.get("MultiRegionConsistency") == "STRONG":
        return ()
    return tuple(one["RegionName"] for one in described.get("Replicas") or ())

"""Reads the facts about a ledger's table. Changes nothing."""

import time
from typing import cast

from onceward.core.drivers import Steps, drive
from onceward.stores.dynamodb.described import SWITCHED_ON, Document, index_of, is_on_demand, keys_of, recovers
from onceward.stores.dynamodb.facts import Table
from onceward.stores.dynamodb.indexes import UNFINISHED
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.stores.dynamodb.table import DynamoTable
from onceward.stores.inspection import Gaps, Unanswered
from onceward.wire.calls import Call, ServiceAnswer
from onceward.wire.codes import code_of
from onceward.wire.credentials import client_of

_UNKNOWN = {"UnknownOperation", "InvalidAction", "NotImplemented", "UnsupportedOperation"}  # codes of emulators
_TIMES = ("lease_until", "created_at", "fence")  # fields of a record that DynamoDB could take for a time to delete it


def inspect(store: DynamoTable) -> Table:
    """Return the facts (:data:`onceward.stores.capabilities.INSPECT`)."""
    gaps = Gaps()
    name = {"TableName": store.requests.table}

    def asked(check: str, action: str, *, needed: bool = True) -> Document | None:
        return gaps.tried(check, lambda: drive(_answer(store, action, name), store), needed=needed)

    layout = store.layout
    wanted = tuple((part.name, "S") for part in layout.parts)
    times = frozenset(layout.names[field] for field in _TIMES)
    table = Table(store.url, store.requests.table, status=None, wanted=wanted, expiry=layout.expiry, times=times)
    answer = asked("table", "DescribeTable")
    if answer is None:
        return table._replace(status="", gaps=tuple(gaps.found))
    if not answer:
        return table
    described = answer["Table"]
    on_demand = is_on_demand(described)
    ttl = asked("TTL", "DescribeTimeToLive")
    backups = asked("point-in-time recovery", "DescribeContinuousBackups", needed=False)
    return table._replace(
        status=described["TableStatus"],
        keys=keys_of(described),
        on_demand=on_demand,
        scaled=None if on_demand else _scaled(described["TableArn"]),
        ttl=None if ttl is None else _ttl(ttl),
        lists_open=layout.lists_open,
        has_open=index_of(described, UNFINISHED) is not None,
        recovers=None if not backups else recovers(backups),
        regions=_lagging(described),
        gaps=tuple(gaps.found),
        skew=(time.time() - store.clock.latest(), time.time() - store.clock.earliest()),
    )


def _scaled(arn: str) -> bool | None:
    """Return whether a table's capacity is scaled, or None if unknown."""
    try:
        client = client_of("application-autoscaling", arn)
        told = client.describe_scalable_targets(
            ServiceNamespace="dynamodb", ResourceIds=[f"table/{arn.rpartition('/')[2]}"]
        )
    except Exception:  # no botocore, permission or credentials: reported as unknown
        return None
    return bool(told["ScalableTargets"])


def _answer(store: DynamoTable, action: str, body: Document) -> Steps[Document]:
    """Ask about a table. The answer is empty if there is none.

    Raises:
        StoreError: it was refused, or no answer came.
    """
    call = Call(DYNAMODB, action, body)
    answer: ServiceAnswer = yield from store.ask(call, gone=400)
    if answer.status == 200:
        return cast("Document", answer.body)
    if code_of(answer) == "ResourceNotFound":
        return {}
    if code_of(answer) in _UNKNOWN or answer.status == 501:
        raise Unanswered(f"the endpoint of {store.url} does not answer {action}, which AWS does and emulators may not")
    raise store.failure(call, answer)


def _ttl(told: Document) -> str:
    """Return the attribute that a TTL is on, or "" when it is off."""
    described = told.get("TimeToLiveDescription", {})
    return str(described.get("AttributeName", "")) if described.get("TimeToLiveStatus") in SWITCHED_ON else ""


def _lagging(described: Document) -> tuple[str, ...]:
    """Return the regions of replicas that are not strongly consistent (DynamoDB API Reference, TableDescription)."""
    if described.get("MultiRegionConsistency") == "STRONG":
        return ()
    return tuple(one["RegionName"] for one in described.get("Replicas") or ())

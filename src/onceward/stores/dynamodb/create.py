"""Makes the table. You can run the steps again, and two processes can run them at once.

Each step first looks for its part. An existing part is checked and left as it is, except a missing TTL: it is switched on
if the table is empty or new, or if you ask for it. In any other table it could delete items of other programs.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from onceward.core.drivers import Sleep, Steps
from onceward.errors import StoreError
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.dynamodb.finding import MESSAGES
from onceward.stores.dynamodb.items import Layout
from onceward.stores.dynamodb.requests import DYNAMODB, Body
from onceward.stores.dynamodb.table import DynamoTable
from onceward.wire.calls import Call, ServiceAnswer, code_of, message_of

Document = Mapping[str, Any]
Keys = tuple[tuple[str, str], ...]  # names and types
SWITCHED_ON: Final = frozenset({"ENABLED", "ENABLING"})  # statuses of a TTL
# Seconds before retrying a part that DynamoDB is busy with.
_PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 5.0)
_WAITS: Final = (0.05, 0.1, 0.2, 0.5, *[1.0] * 120)  # seconds between checks of a table that is being made
# Answers that can mean that another process does the same. DynamoDB builds one index of a table at a time.
_BUSY: Final = ("ResourceInUse", "Validation", "LimitExceeded")


def provision(store: DynamoTable, options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the table, on demand, with its index of messages and its TTL (:data:`onceward.stores.capabilities.PROVISION`).

    A table that was there gets the index, too. It has only items with unsent messages, so others cost nothing.

    The option "ttl" switches on the TTL of an existing table that has items. DynamoDB then deletes each item, also of other
    programs, whose number in that attribute is a time in the past.

    Raises:
        StoreError: the existing table has another key, another TTL attribute, or items and no TTL; or a request was
            refused. The parts before that are made.
    """
    check_options(store.url, options, {"ttl"})
    table = yield from _table(store)
    index = yield from _index(store, is_new=table.made)
    return [table, index, (yield from _expiry(store, any_items="ttl" in options or table.made))]


# --- what is sent, and what templates print (template.py) -----------------------------------------------------------


def table_of(table: str, layout: Layout) -> Body:
    """Return the parameters of CreateTable."""
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": _attributes(layout),
        "KeySchema": _schema([part.name for part in layout.parts]),
        "GlobalSecondaryIndexes": [index_of(layout)],
    }


def index_of(layout: Layout) -> Body:
    """Return the index of messages."""
    keys = _schema([layout.shard, layout.names["due_at"]])
    return {"IndexName": MESSAGES, "KeySchema": keys, "Projection": {"ProjectionType": "KEYS_ONLY"}}


def _attributes(layout: Layout) -> list[Body]:
    """Return the definitions of the attributes of the table's key and of its index's."""
    texts = [{"AttributeName": name, "AttributeType": "S"} for name in (*(p.name for p in layout.parts), layout.shard)]
    return [*texts, {"AttributeName": layout.names["due_at"], "AttributeType": "N"}]


def _schema(names: list[str]) -> list[Body]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ("HASH", "RANGE"), strict=False)]


def expiry_of(layout: Layout) -> Body:
    """Return the TimeToLiveSpecification."""
    return {"AttributeName": layout.expiry, "Enabled": True}


# --- the steps ------------------------------------------------------------------------------------------------------


def _table(store: DynamoTable) -> Steps[Part]:
    described = yield from _describe(store)
    is_new = False
    if described is None:
        body = table_of(store.requests.table, store.layout)
        is_new = (yield from _request(store, "CreateTable", body, "ResourceInUse")).status == 200
    for pause in _WAITS:
        status = None if described is None else str(described.get("TableStatus"))
        if described is not None and status == "ACTIVE":
            there, ours = key_text(keys_of(described)), key_text(keys_of(table_of("", store.layout)))
            if there != ours:
                raise StoreError(
                    f"ledger {store.url}: the table is there and its key is {there}, but this ledger's key is {ours}: give it "
                    "another table, or say how records are stored in this one (partition=NAME={key}, sort=NAME=TEXT). Nothing "
                    "was changed"
                )
            billing = "on demand" if is_on_demand(described) else "provisioned capacity, left as it is"
            return Part(f"table {store.requests.table} ({billing}, key {there})", is_new)
        # None: descriptions are eventually consistent and may not show a new table for a moment.
        if status not in {None, "CREATING", "UPDATING"}:
            raise StoreError(f"ledger {store.url}: the table is {status}: run this again when it is gone, or ACTIVE")
        yield Sleep(pause)
        described = yield from _describe(store)
    raise StoreError(f"ledger {store.url}: the table is not ACTIVE yet; run this again", transient=True)


def _index(store: DynamoTable, *, is_new: bool) -> Steps[Part]:
    """Make the index if the table lacks it. DynamoDB builds it in some minutes, and the table works meanwhile."""
    index, part, why = index_of(store.layout), Part(f"index {MESSAGES}", is_new), ""
    for pause in _PAUSES:
        described = (yield from _describe(store)) or {}
        for there in described.get("GlobalSecondaryIndexes") or ():
            if there["IndexName"] == MESSAGES:
                if _by_kind(there) != _by_kind(index):
                    raise StoreError(
                        f"ledger {store.url}: the table has an index {MESSAGES} with another key. Delete it, and run this again, "
                        "or give the ledger another table. Nothing was changed"
                    )
                return part
        if described:
            if not is_on_demand(described):
                throughput = described["ProvisionedThroughput"]
                index["ProvisionedThroughput"] = {
                    f"{kind}CapacityUnits": throughput[f"{kind}CapacityUnits"] for kind in ("Read", "Write")
                }
            body = {
                "AttributeDefinitions": _attributes(store.layout),
                "GlobalSecondaryIndexUpdates": [{"Create": index}],
            }
            answer = yield from _request(store, "UpdateTable", body, *_BUSY)
            if answer.status == 200:
                return part._replace(made=True)
            why = message_of(answer)
        yield Sleep(pause)
    raise StoreError(f"ledger {store.url}: index {MESSAGES} was not made ({why}); run this again later")


def _expiry(store: DynamoTable, *, any_items: bool) -> Steps[Part]:
    """Switch the TTL on. ``any_items`` says whether to do so in a table that has items."""
    name, why = store.layout.expiry, ""
    for pause in _PAUSES:
        answer = yield from _request(store, "DescribeTimeToLive", {}, "ResourceNotFound")
        description = answer.body.get("TimeToLiveDescription", {})
        status, attribute = description.get("TimeToLiveStatus"), description.get("AttributeName")
        if status in SWITCHED_ON:
            if attribute != name:
                field = "expiration" if store.layout.shared else "expires_at"  # Powertools' attributes have its names
                raise StoreError(
                    f"ledger {store.url}: the table's TTL is on {attribute}, and this ledger's records expire by {name}: give "
                    f"the ledger another table, or the URL name.{field}={attribute}. Its TTL was not changed"
                )
            return Part(f"TTL on {name}", made=False)
        if status == "DISABLED":
            if not any_items:
                yield from _check_empty(store, name)
            body = {"TimeToLiveSpecification": expiry_of(store.layout)}
            answer = yield from _request(store, "UpdateTimeToLive", body, *_BUSY)
            if answer.status == 200:
                return Part(f"TTL on {name}", made=True)
        why = message_of(answer) or f"it is {status}"
        yield Sleep(pause)
    raise StoreError(
        f"ledger {store.url}: TTL on {name} was not enabled ({why}). DynamoDB allows one change of it an hour: run this again "
        "later. Until then expired records stay, and nothing else is different"
    )


def _check_empty(store: DynamoTable, name: str) -> Steps[None]:
    look = {"Limit": 1, "Select": "COUNT", "ConsistentRead": True}
    page = (yield from _request(store, "Scan", look)).body
    if page.get("Count") or page.get("LastEvaluatedKey"):
        raise StoreError(
            f"ledger {store.url}: the table was there already, has items, and its TTL is off. With TTL on {name}, DynamoDB "
            f"would delete every item whose {name} is a time in the past, also those of other programs, so it "
            "was left off. If you want that, run `onceward init --ttl`. Otherwise the ledger "
            "works as it is, and `onceward purge` deletes its own expired records"
        )


def _request(store: DynamoTable, action: str, body: Document, *expected: str) -> Steps[ServiceAnswer]:
    """Send a call for the table and return its answer, which may be an ``expected`` error. Retry errors that pass by themselves."""
    call = Call(DYNAMODB, action, {"TableName": store.requests.table, **body})
    for pause in (*_PAUSES, 0.0):
        answer = yield from store.ask(call, accept=400)
        if answer.status == 200 or code_of(answer) in expected:
            break
        error = store.failure(call, answer)
        if not pause or not error.transient:
            raise error
        yield Sleep(pause)
    return answer


# --- what DynamoDB says about a table ----------------------------------------------------------------------------------


def _describe(store: DynamoTable) -> Steps[Document | None]:
    """Return the table's description, or None when there is no such table."""
    answer = yield from _request(store, "DescribeTable", {}, "ResourceNotFound")
    return answer.body["Table"] if answer.status == 200 else None


def keys_of(described: Document) -> Keys:
    """Return the key attributes, HASH first."""
    types = {one["AttributeName"]: one["AttributeType"] for one in described["AttributeDefinitions"]}
    return tuple((name, types[name]) for _, name in sorted(_by_kind(described).items()))


def _by_kind(described: Document) -> dict[str, str]:
    return {one["KeyType"]: one["AttributeName"] for one in described["KeySchema"]}


def key_text(keys: Keys) -> str:
    """Return key attributes as people write them: ``pk (S) and sk (S)``."""
    return " and ".join(f"{name} ({kind})" for name, kind in keys)


def is_on_demand(described: Document) -> bool:
    """Return whether it is billed by request. A table that never was has no summary."""
    return bool(described.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST")

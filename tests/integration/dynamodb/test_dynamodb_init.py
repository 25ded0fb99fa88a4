"""`onceward init` for DynamoDB: what it sends and leaves alone; and the index of messages that it makes, as a look reads it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures import closing_fixture
from onceward import Once, StoreError
from onceward.core.drivers import Sleep, drive
from onceward.core.record import COMPLETED
from onceward.core.selections import DueWithin
from onceward.stores import open_store
from onceward.stores.capabilities import OUTBOX
from onceward.stores.dynamodb.create import index_of, provision
from onceward.stores.dynamodb.items import SHARDS
from onceward.testing.bench import claim_of
from onceward.wire.calls import Call, Many, ServiceAnswer
from servers.needs import numbers
from servers.proxy import Refuse
from stores.templates import sent

_NUMBERS = numbers()


@pytest.fixture
def name():
    """The name of a table that there is not."""
    return f"init-{next(_NUMBERS)}"


store = closing_fixture(lambda proxy, name: open_store(f"dynamodb://{name}?endpoint={proxy.url}"))


def made(parts):
    return [part.made for part in parts]


def test_the_table_is_on_demand_has_the_layouts_key_and_expires_and_is_made_once(store, name, dynoxide, proxy):
    parts = drive(provision(store, set()), store)
    assert [part.what for part in parts] == [
        f"table {name} (on demand, key key (S))",
        "index onceward_due",
        "TTL on expires_at",
    ]
    assert made(parts) == [True, True, True]
    table = dynoxide.ask("DescribeTable", TableName=name)["Table"]
    assert table["KeySchema"] == [{"AttributeName": "key", "KeyType": "HASH"}]
    kinds = {one["AttributeName"]: one["AttributeType"] for one in table["AttributeDefinitions"]}
    assert kinds == {"key": "S", "due_shard": "S", "due_at": "N"}
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = dynoxide.ask("DescribeTimeToLive", TableName=name)["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires_at"}
    proxy.clear()
    assert made(drive(provision(store, set()), store)) == [False, False, False]
    assert proxy.actions == ["DescribeTable", "DescribeTable", "DescribeTimeToLive"]


def test_a_table_of_another_layout_is_made_as_its_url_says(proxy, name, dynoxide):
    options = "partition=pk%3DONCE%23{key}&sort=sk%3DLOCK&name.expires_at=gone_at"
    store = open_store(f"dynamodb://{name}?endpoint={proxy.url}&{options}")
    drive(provision(store, set()), store)
    schema = dynoxide.ask("DescribeTable", TableName=name)["Table"]["KeySchema"]
    assert {key["AttributeName"]: key["KeyType"] for key in schema} == {"pk": "HASH", "sk": "RANGE"}
    ttl = dynoxide.ask("DescribeTimeToLive", TableName=name)["TimeToLiveDescription"]
    assert ttl["AttributeName"] == "gone_at"


def test_of_many_at_once_one_makes_the_table_and_all_are_content(proxy, name):
    stores = [open_store(f"dynamodb://{name}?endpoint={proxy.url}") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda store: drive(provision(store, set()), store), stores))
    for store in stores:
        store.close()
    assert sorted(parts[0].made for parts in told) == [False] * 7 + [True]


def test_a_former_versions_table_refuses_messages_until_init_adds_the_index(store, proxy, name, dynoxide):
    dynoxide.ask(
        "CreateTable",
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    drive(store.insert(claim_of("key")), store)
    ready = OUTBOX.require(store)
    with pytest.raises(StoreError, match=r"no index of messages .* `onceward init --store '.*'` makes it") as refused:
        drive(ready(), store)
    assert not refused.value.transient
    assert made(drive(provision(store, {"ttl"}), store)) == [False, True, True]
    assert made(drive(provision(store, set()), store)) == [False, False, False]
    drive(ready(), store)
    assert len(sent(proxy, "UpdateTable")) == 1


def test_an_index_that_dynamodb_still_builds_does_not_refuse_messages(store, proxy, dynoxide):
    dynoxide.table(store.requests.table)
    why = "Cannot read from backfilling global secondary index: onceward_due"
    proxy.rule = lambda seen: Refuse("ValidationException", message=why) if seen.action == "Query" else None
    drive(OUTBOX.require(store)(), store)


def ttl_of(dynoxide, table):
    return dynoxide.ask("DescribeTimeToLive", TableName=table)["TimeToLiveDescription"]["TimeToLiveStatus"]


def test_ttl_is_not_switched_on_in_a_table_that_has_items_already(store, proxy, dynoxide, name):
    dynoxide.table(name)
    foreign = {"key": {"S": "a customer"}, "expires_at": {"N": "1"}}  # a time in the past
    dynoxide.ask("PutItem", TableName=name, Item=foreign)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"TTL is off.*`onceward init --ttl`") as told:
            drive(provision(store, set()), store)
        assert not told.value.transient
    assert sent(proxy, "UpdateTimeToLive") == []
    assert ttl_of(dynoxide, name) == "DISABLED"
    assert foreign in dynoxide.items(name)
    Once(store, name="n").acquire("k").complete()


def test_an_init_interrupted_before_the_ttl_is_finished_by_the_next(store, proxy, dynoxide, name):
    proxy.rule = lambda seen: Refuse("AccessDeniedException") if seen.action == "UpdateTimeToLive" else None
    with pytest.raises(StoreError, match="UpdateTimeToLive"):
        drive(provision(store, set()), store)
    proxy.rule = lambda seen: None
    assert made(drive(provision(store, set()), store)) == [False, False, True]
    assert [(body["Limit"], body["ConsistentRead"]) for body in sent(proxy, "Scan")] == [(1, True)]
    assert ttl_of(dynoxide, name) == "ENABLED"


def test_a_ttl_on_another_attribute_is_refused_and_left_alone(store, proxy, dynoxide, name):
    dynoxide.table(name)
    dynoxide.ask(
        "UpdateTimeToLive", TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "gone_at"}
    )
    with pytest.raises(StoreError, match=r"TTL is on gone_at.*expire by expires_at.*name\.expires_at=gone_at"):
        drive(provision(store, set()), store)
    assert sent(proxy, "UpdateTimeToLive") == []


def described(status):
    table = {
        "TableStatus": status,
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
        "GlobalSecondaryIndexes": [index_of(open_store("dynamodb://ledger").layout)],
    }
    return ServiceAnswer(200, {"Table": table}, 1e9, 0.0, 0.0)


@pytest.mark.parametrize(
    ("status", "says", "transient"),
    [("DELETING", "the table is DELETING", False), ("CREATING", "not ACTIVE yet; run this again", True)],
)
def test_what_init_gives_up_is_told_with_what_to_do(store, status, says, transient):
    steps, slept = provision(store, set()), 0.0
    request = next(steps)
    with pytest.raises(StoreError, match=says) as told:
        while True:
            slept += request.seconds if isinstance(request, Sleep) else 0.0
            request = steps.send(described(status) if isinstance(request, Call) else None)
    assert told.value.transient is transient
    assert (60 < slept < 300) is transient


@pytest.fixture
def due(url, proxy):
    """A ledger that has been asked once, for messages that are due."""
    made = open_store(url)
    drive(made.load("?"), made)
    proxy.clear()
    yield made
    made.close()


def complete(store, key, due_in=-5.0):
    write = claim_of(key, "a", status=COMPLETED, lease=0.0, keep=None, unsent="{}", due=due_in)
    reply = drive(store.insert(write), store)
    assert reply.won
    return reply.record


def found(store, limit=100):
    return drive(store.select(DueWithin(), None, limit), store)


def test_a_look_is_eight_queries_and_thirty_records_are_read_in_two_requests(due, proxy):
    assert found(due).records == []
    assert proxy.actions == ["Query"] * SHARDS
    assert {seen.body["IndexName"] for seen in proxy.seen} == {"onceward_due"}
    for number in range(30):
        complete(due, f"k{number}")
    proxy.clear()
    assert len(found(due).records) == 30
    assert sorted(proxy.actions) == [*["BatchExecuteStatement"] * 2, *["Query"] * SHARDS]
    values = [value for seen in proxy.seen[:SHARDS] for value in seen.body["ExpressionAttributeValues"].values()]
    assert len({value["S"] for value in values if "S" in value}) == SHARDS


def test_an_index_that_is_late_finds_nothing_that_is_struck_out_or_sent(due, dynoxide):
    left, struck, leased = (complete(due, key) for key in ("left", "struck", "leased"))
    late = dynoxide.ask("Scan", TableName=due.requests.table, IndexName="onceward_due")["Items"]
    write = claim_of("struck", "a", beat=1, fence=struck.fence, status=COMPLETED)
    assert drive(due.swap(write, struck), due).won
    write = claim_of("leased", "a", beat=1, fence=leased.fence, status=COMPLETED, keep=None, unsent="{}", due=30.0)
    assert drive(due.swap(write, leased), due).won
    steps = due.select(DueWithin(), None, 100)
    request = next(steps)
    assert isinstance(request, Many)
    answers = [ServiceAnswer(200, {"Items": late if not shard else []}, None, 0.0, 0.0) for shard in range(SHARDS)]
    request = steps.send(answers)
    with pytest.raises(StopIteration) as end:
        while True:
            request = steps.send(due.exchange(request))
    assert [record.key for record in end.value.value.records] == [left.key]


def test_the_item_has_a_shard_only_while_it_has_messages(due, dynoxide):
    held = complete(due, "k")
    (item,) = dynoxide.items(due.requests.table)
    assert item["due_shard"]["S"] in set(map(str, range(SHARDS)))
    write = claim_of("k", "a", beat=1, fence=held.fence, status=COMPLETED)
    assert drive(due.swap(write, held), due).won
    (item,) = dynoxide.items(due.requests.table)
    assert not {"due_shard", "due_at", "unsent"} & item.keys()


def test_ledgers_that_share_a_table_find_their_own_messages(proxy, dynoxide):
    name = dynoxide.table(f"shared-{next(_NUMBERS)}", {"pk": "S"})
    stores = [
        open_store(f"dynamodb://{name}?endpoint={proxy.url}&partition=pk%3D{letter}%23{{key}}") for letter in "ab"
    ]
    for store, key in zip(stores, ("one", "two"), strict=True):
        complete(store, key)
    assert [[record.key for record in found(store).records] for store in stores] == [["one"], ["two"]]
    for store in stores:
        store.close()

"""Finding due messages in DynamoDB: how many requests it takes, that the index only hints, and ledgers that share a table."""

import pytest

from onceward.core.drivers import drive
from onceward.core.record import COMPLETED
from onceward.core.selections import DueWithin
from onceward.stores import open_store
from onceward.stores.dynamodb.items import SHARDS
from onceward.testing.bench import claim_of
from onceward.wire.calls import Many, ServiceAnswer
from servers.needs import numbers

_NUMBERS = numbers()


@pytest.fixture
def store(url, proxy):
    store = open_store(url)
    drive(store.load("?"), store)
    proxy.clear()
    yield store
    store.close()


def complete(store, key, due_in=-5.0):
    write = claim_of(key, "a", status=COMPLETED, lease=0.0, keep=None, unsent="{}", due=due_in)
    reply = drive(store.insert(write), store)
    assert reply.won
    return reply.record


def found(store, limit=100):
    return drive(store.select(DueWithin(), None, limit), store)


def test_a_look_is_eight_queries_and_thirty_records_are_read_in_two_requests(store, proxy):
    assert found(store).records == []
    assert proxy.actions == ["Query"] * SHARDS
    assert {seen.body["IndexName"] for seen in proxy.seen} == {"onceward_due"}
    for number in range(30):
        complete(store, f"k{number}")
    proxy.clear()
    assert len(found(store).records) == 30
    assert sorted(proxy.actions) == [*["BatchExecuteStatement"] * 2, *["Query"] * SHARDS]
    values = [value for seen in proxy.seen[:SHARDS] for value in seen.body["ExpressionAttributeValues"].values()]
    assert len({value["S"] for value in values if "S" in value}) == SHARDS


def test_an_index_that_is_late_finds_nothing_that_is_struck_out_or_sent(store, dynoxide):
    left, struck, leased = (complete(store, key) for key in ("left", "struck", "leased"))
    late = dynoxide.ask("Scan", TableName=store.requests.table, IndexName="onceward_due")["Items"]
    write = claim_of("struck", "a", beat=1, fence=struck.fence, status=COMPLETED)
    assert drive(store.swap(write, struck), store).won
    write = claim_of("leased", "a", beat=1, fence=leased.fence, status=COMPLETED, keep=None, unsent="{}", due=30.0)
    assert drive(store.swap(write, leased), store).won
    steps = store.select(DueWithin(), None, 100)
    request = next(steps)
    assert isinstance(request, Many)
    answers = [ServiceAnswer(200, {"Items": late if not shard else []}, None, 0.0, 0.0) for shard in range(SHARDS)]
    request = steps.send(answers)
    with pytest.raises(StopIteration) as end:
        while True:
            request = steps.send(store.exchange(request))
    assert [record.key for record in end.value.value.records] == [left.key]


def test_the_item_has_a_shard_only_while_it_has_messages(store, dynoxide):
    held = complete(store, "k")
    (item,) = dynoxide.items(store.requests.table)
    assert item["due_shard"]["S"] in set(map(str, range(SHARDS)))
    write = claim_of("k", "a", beat=1, fence=held.fence, status=COMPLETED)
    assert drive(store.swap(write, held), store).won
    (item,) = dynoxide.items(store.requests.table)
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

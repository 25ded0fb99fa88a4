"""Tables whose attributes have other names or keys of two parts, and tables that belong to other systems."""

import zlib
from base64 import b64encode

import pytest

from onceward import Once, StoreError, current
from onceward.core.drivers import drive
from onceward.core.selections import ByKey
from onceward.stores.dynamodb.items import UNPACKED, Layout
from onceward.stores.dynamodb.powertools import Powertools
from onceward.stores.dynamodb.store import DynamoStore
from onceward.testing.bench import claim_of
from onceward.testing.conformance import CHECKS, MODES, Bench
from servers.needs import numbers
from stores.dynamodb_desk import plain_wires
from tables import each

pytestmark = pytest.mark.sampled(mode=1)

NAMES = {"status": "st", "owner": "o", "expires_at": "ttl", "result": "answer", "beat": "b"}
LAYOUTS = {
    "prefixed": (Layout("pk=ONCE#{key}"), ("pk",)),
    "composite, key first": (Layout("pk=ONCE#{key}", "sk=LOCK"), ("pk", "sk")),
    "composite, key last": (Layout("pk=LOCKS", "sk=ONCE#{key}"), ("pk", "sk")),
    "named": (Layout("id={key}", names=NAMES), ("id",)),
    "powertools": (Powertools(), ("id",)),
    "powertools, composite": (Powertools("id=idempotency#f", "sk={key}", {"expiration": "ttl"}), ("id", "sk")),
}
NUMBERS = numbers()


@pytest.fixture
def opened(dynoxide, proxy):
    """Opens a store on a table of a layout, through the proxy; the server's clock is the one given."""
    stores = []

    def made(layout, keys=("id",), clock=None, table=None, **options):
        if clock is not None:
            proxy.date = clock
            options["clock"] = clock
        name = table or dynoxide.table(f"layout-{next(NUMBERS)}", dict.fromkeys(keys, "S"))
        stores.append(DynamoStore(name, plain_wires(proxy.url, **options), layout=layout, **options))
        return stores[-1]

    yield made
    for store in stores:
        store.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
@each("check", CHECKS)
def test_a_store_conforms_whatever_its_layout(check, mode, layout, opened):
    made, keys = LAYOUTS[layout]
    bench = Bench(
        lambda clock: opened(made, keys, clock),
        lambda store, clock: opened(made, clock=clock, table=store.requests.table),
        mode=mode,
    )
    check.run(bench)


def do(store, steps):
    return drive(steps, store)


def keys_in(store, prefix=""):
    return sorted(record.key for record in do(store, store.select(ByKey(prefix), None, 100)).records)


STRANGERS = [
    {"id": {"S": "ONCE#user"}, "status": {"S": "active"}, "owner": {"S": "someone"}},
    {"id": {"S": "order#1"}, "status": {"S": "COMPLETED"}, "expires_at": {"N": "1"}},
    {"id": {"S": "once#k"}, "fence": {"N": "1"}, "beat": {"N": "1"}},
]


def test_other_items_of_the_table_are_not_taken_for_records(opened, dynoxide):
    mine = opened(Layout("id=ONCE#{key}"))
    other = opened(Layout("id=OTHER#{key}"), table=mine.requests.table)
    for item in STRANGERS:
        dynoxide.ask("PutItem", TableName=mine.requests.table, Item=item)
    for store, keys in ((mine, ["a", "b"]), (other, ["a", "c"])):
        replies = do(store, store.insert_many([claim_of(key, "me", lease=0.0, keep=-100.0) for key in keys]))
        assert all(reply.won for reply in replies)
    assert (keys_in(mine), keys_in(mine, "a"), keys_in(other)) == (["a", "b"], ["a"], ["a", "c"])
    assert do(mine, mine.purge(100)).deleted == 2
    assert keys_in(other) == ["a", "c"]
    assert len(dynoxide.items(mine.requests.table)) == len(STRANGERS) + 2


def test_two_ledgers_share_the_partitions_of_a_table_by_their_sort_keys(opened):
    one = opened(Layout("pk={key}", "sk=ONE"), ("pk", "sk"))
    two = opened(Layout("pk={key}", "sk=TWO"), table=one.requests.table)
    for store in (one, two):
        assert do(store, store.insert(claim_of("k", "me"))).won
        assert keys_in(store) == ["k"]
    (record,) = do(one, one.select(ByKey(), None, 10)).records
    assert do(one, one.delete(record)).won
    assert (keys_in(one), keys_in(two)) == ([], ["k"])


def test_an_item_under_a_records_key_that_is_none_is_an_error_and_stays(opened, dynoxide):
    store = opened(Layout("id=ONCE#{key}"))
    dynoxide.ask("PutItem", TableName=store.requests.table, Item=STRANGERS[0])
    for steps in (store.insert(claim_of("user", "me")), store.load("user")):
        with pytest.raises(StoreError, match="not a record of onceward"):
            do(store, steps)
    for answer in do(store, store.insert_many([claim_of("user")] * 2)):
        assert isinstance(answer, StoreError)
        assert "not a record of onceward" in str(answer)
    assert dynoxide.items(store.requests.table) == [STRANGERS[0]]


@each(
    ("options", "message"),
    [
        ({"partition": "pk={key}suffix"}, "write a key attribute as"),
        ({"partition": "pk={key}", "sort": "sk={key}"}, "exactly one of the two"),
        ({"partition": "status={key}"}, "share the attribute status"),
        ({"names": {"owner": "fence"}}, "share the attribute fence"),
        ({"names": {"key": "id"}}, "unknown field key"),
    ],
)
def test_a_layout_that_cannot_be_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        Layout(**options)


@each(
    ("content", "says"),
    [
        (b"no zlib", "not a record of onceward"),
        (zlib.compress(b"x" * 5000)[:-3], "not a record of onceward"),
        (zlib.compress(b"\xff" * 9), "not a record of onceward"),
        (zlib.compress(b"0" * (UNPACKED + 1)), f"over {UNPACKED} bytes"),
    ],
)
def test_a_result_that_is_no_compressed_text_or_unfolds_beyond_the_limit_is_refused(content, says):
    item = {**Layout().item(claim_of("k", "a").at(1e9)), "result": {"B": b64encode(content).decode()}}
    with pytest.raises(StoreError, match=says):
        Layout().record(item)


def test_a_result_that_could_not_be_read_back_is_not_compressed():
    record = claim_of("k", "a").at(1e9)._replace(result="0" * (UNPACKED + 1))
    assert set(Layout().item(record)["result"]) == {"S"}


def test_steps_and_their_large_results_survive_in_other_attributes(opened):
    once = Once(opened(Layout("id={key}", names={**NAMES, "steps": "did", "needs": "asks"})), name="key")
    large = "".join(f"{n}é" for n in range(20_000))

    def handle():
        claim = current()
        got = claim.step("small", lambda: {"n": (1, 2)}), claim.step("large", lambda: large)
        if claim.attempt == 1:
            raise LookupError
        return claim.step("small again", lambda: got[0])

    with pytest.raises(LookupError):
        once.run("k", handle)
    assert len(list(once.ledger.records("key:step-"))) == 1
    assert once.run("k", handle) == {"n": (1, 2)}
    once.ledger.clear("key:k")
    assert list(once.ledger.records()) == []

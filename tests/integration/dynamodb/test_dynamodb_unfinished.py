"""The optional index of what is not completed: what a write costs, that the index only hints, and what is asked of it."""

import random

import pytest

from onceward import Once, StoreError
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.core.selections import ByKey
from onceward.core.views import Criteria
from onceward.core.writes import ended, first_claim
from onceward.stores import open_store
from onceward.stores.capabilities import INSPECT, MIGRATE, OBSERVE, SURVEY
from onceward.stores.dynamodb.finding import survey
from onceward.stores.dynamodb.items import SHARDS
from onceward.stores.survey import NOTHING
from onceward.testing.bench import claim_of
from onceward.wire.calls import ServiceAnswer
from servers.needs import numbers

_NUMBERS = numbers()
QUERIES = 6 * SHARDS  # of one look: three statuses, LAPSED, UNSENT and REFUSED


@pytest.fixture
def table(dynoxide):
    return dynoxide.table(f"unfinished-{next(_NUMBERS)}", opened=True)


@pytest.fixture
def store(url, proxy):
    store = open_store(f"{url}&index=open")
    drive(store.load("?"), store)
    proxy.clear()
    yield store
    store.close()


@pytest.fixture
def former(url):
    """The same ledger as a worker without ``index=open`` sees it."""
    store = open_store(url)
    yield store
    store.close()


def write(store, key, status, **more):
    claim = first_claim(key, f"of {key}", None, Once("memory:").policy)
    made = claim._replace(lease=-5.0) if status == "LAPSED" else claim if status == IN_PROGRESS else None
    made = made or ended(claim, status, "1" if status == COMPLETED else None, None)
    reply = drive(store.insert(made._replace(**more)), store)
    assert reply.won
    return reply.record


def change(store, seen, status, lease=0.0):
    write = claim_of(seen.key, seen.owner, beat=seen.beat + 1, fence=seen.fence, status=status, lease=lease, keep=None)
    reply = drive(store.swap(write, seen), store)
    assert reply.won
    return reply.record


def found(store, *states, prefix="", limit=100):
    keys, after = [], None
    while True:
        page = drive(store.select(ByKey(prefix, Criteria(states)), after, limit), store)
        assert len(page.records) <= limit
        keys += [record.key for record in page.records]
        after = page.next
        if after is None:
            return keys


def surveyed(store):
    return drive(SURVEY.needed(store)(), store)


def entries(dynoxide, store):
    items = dynoxide.ask("Scan", TableName=store.requests.table, IndexName="onceward_open")["Items"]
    return {item["key"]["S"]: item["open_shard"]["S"].partition("/")[0] for item in items}


def mixed(store):
    kinds = [COMPLETED] * 20 + [PARKED] * 7 + [RELEASED] * 5 + [IN_PROGRESS] * 3 + ["LAPSED"] * 2
    random.Random(1).shuffle(kinds)
    for number, kind in enumerate(kinds):
        write(store, f"{'ab'[number % 2]}:{number}", kind)


# --- what is written ------------------------------------------------------------------------------------------------


def test_a_record_has_an_entry_only_until_it_is_completed(store, dynoxide):
    held = write(store, "k", IN_PROGRESS)
    assert entries(dynoxide, store) == {"k": IN_PROGRESS}
    for status in (RELEASED, PARKED):
        held = change(store, held, status)
        assert entries(dynoxide, store) == {"k": status}
    change(store, held, COMPLETED)
    assert entries(dynoxide, store) == {}
    assert "open_shard" not in dynoxide.items(store.requests.table)[0]


def test_a_worker_without_the_option_writes_no_further_attribute(former, dynoxide, proxy):
    change(former, write(former, "k", IN_PROGRESS), COMPLETED)
    assert "open_shard" not in str([seen.body for seen in proxy.seen])
    assert entries(dynoxide, former) == {}


@pytest.mark.parametrize(("option", "units"), [("", [1.0, 1.0, 1.0]), ("&index=open", [2.0, 2.0, 2.0])])
def test_claim_heartbeat_and_completion_cost_one_unit_or_two(option, units, url):
    store, told = open_store(f"{url}{option}"), []
    drive(store.load("?"), store)
    OBSERVE.needed(store)(told.append)
    held = change(store, write(store, "k", IN_PROGRESS), IN_PROGRESS, lease=90.0)
    change(store, held, COMPLETED)
    assert [one.units for one in told] == units
    store.close()


def test_a_batch_completes_records_and_their_entries_in_one_request(store, dynoxide, proxy):
    held = [write(store, f"k{n}", IN_PROGRESS) for n in range(5)]
    proxy.clear()
    writes = [claim_of(one.key, one.owner, beat=1, fence=one.fence, status=COMPLETED, lease=0.0) for one in held]
    replies = drive(store.swap_many(list(zip(writes, held, strict=True))), store)
    assert all(reply.won for reply in replies)
    assert proxy.actions == ["BatchExecuteStatement"]
    assert entries(dynoxide, store) == {}


# --- what is asked --------------------------------------------------------------------------------------------------


def test_the_counts_are_those_of_a_scan_and_nothing_is_scanned(store, former, proxy):
    mixed(store)
    counted = Once(former).ledger.stats()
    proxy.clear()
    survey = surveyed(store)
    assert sorted(proxy.actions) == ["DescribeTable", *["Query"] * QUERIES]
    assert [survey.counts[one] for one in (PARKED, "LAPSED")] == [counted[PARKED], counted["lapsed"]]
    assert survey.counts == {PARKED: 7, RELEASED: 5, IN_PROGRESS: 5, "LAPSED": 2, "UNSENT": 0, "REFUSED": 0}
    assert (survey.total, survey.exact, survey.least) == (37, False, frozenset())


def test_records_are_found_in_the_order_of_keys_in_pages_of_any_size(store, proxy):
    mixed(store)
    everything = {record.key: record for record, _ in Once(store).ledger.records()}
    proxy.clear()
    for limit in (1, 3, 100):
        for prefix in ("", "a:"):
            keys = found(store, PARKED, RELEASED, prefix=prefix, limit=limit)
            wanted = [k for k, one in everything.items() if one.status in {PARKED, RELEASED} and k.startswith(prefix)]
            assert keys == sorted(wanted)
            assert len(found(store, "LAPSED", limit=limit)) == 2
    assert set(proxy.actions) == {"Query", "BatchGetItem"}


def test_messages_are_counted_and_found_by_their_index(store, proxy):
    for number in range(9):
        write(store, f"a:{number}", COMPLETED, keep=None, unsent="{}", due=number * 100.0)
    write(store, "b:no", COMPLETED, keep=None, unsent="{}", due=1e10)
    write(store, "b:none", COMPLETED)
    proxy.clear()
    survey = surveyed(store)
    assert (survey.counts["UNSENT"], survey.counts["REFUSED"]) == (9, 1)
    for limit in (1, 4, 100):
        assert found(store, "UNSENT", limit=limit) == [f"a:{number}" for number in range(9)]
        assert found(store, "REFUSED", "UNSENT", prefix="b", limit=limit) == ["b:no"]
    assert found(store, "REFUSED") == ["b:no"]
    assert "Scan" not in proxy.actions
    counts, estimated = Once(store).ledger.estimate()
    assert estimated == {"total", COMPLETED}
    assert (counts["unsent"], counts["refused"]) == (9, 1)


def test_completed_records_are_still_looked_for_by_a_scan(store, proxy):
    mixed(store)
    proxy.clear()
    assert len(found(store, COMPLETED, PARKED)) == 27
    assert set(proxy.actions) == {"Scan"}


def test_a_page_ends_where_a_shard_is_not_known_any_further(store):
    for number in range(4):
        write(store, f"k{number}", PARKED)
    steps = store.select(ByKey(criteria=Criteria((PARKED,))), None, 10)
    next(steps)
    shards = [["k1"], ["k0", "k3"], *[[]] * (SHARDS - 2)]
    answers = [ServiceAnswer(200, {"Items": [store.layout.key(k) for k in keys]}, None, 0.0, 0.0) for keys in shards]
    answers[0].body["LastEvaluatedKey"] = store.layout.key("k1")
    request = steps.send(answers)
    with pytest.raises(StopIteration) as end:
        while True:
            request = steps.send(store.exchange(request))
    page = end.value.value
    assert [record.key for record in page.records] == ["k0", "k1"]
    assert drive(store.select(ByKey(criteria=Criteria((PARKED,))), page.next, 10), store).records[0].key == "k2"


def test_an_index_that_is_late_finds_nothing_that_is_completed(store, dynoxide):
    left, done, gone = (write(store, key, PARKED) for key in ("left", "done", "gone"))
    steps = store.select(ByKey(criteria=Criteria((PARKED,))), None, 10)
    next(steps)
    late = dynoxide.ask("Scan", TableName=store.requests.table, IndexName="onceward_open")["Items"]
    change(store, done, COMPLETED)
    drive(store.delete(gone), store)
    answers = [ServiceAnswer(200, {"Items": late if not shard else []}, None, 0.0, 0.0) for shard in range(SHARDS)]
    request = steps.send(answers)
    with pytest.raises(StopIteration) as end:
        while True:
            request = steps.send(store.exchange(request))
    assert [record.key for record in end.value.value.records] == [left.key]


def test_more_than_the_bound_is_told_as_at_least(store):
    steps = survey(store)
    request = next(steps)
    answers = []
    for call in request.calls:
        parked = {"S": PARKED} in call.body["ExpressionAttributeValues"].values()
        more = {"LastEvaluatedKey": store.layout.key("k")} if parked else {}
        answers.append(ServiceAnswer(200, {"Count": int(parked), "Items": [], **more}, None, 0.0, 0.0))
    request = steps.send(answers)
    with pytest.raises(StopIteration) as end:
        while True:
            request = steps.send(store.exchange(request))
    assert end.value.value.counts[PARKED] == SHARDS
    assert end.value.value.least == {PARKED}


def test_ledgers_that_share_a_table_count_their_own_records(proxy, dynoxide):
    name = dynoxide.table(f"shared-{next(_NUMBERS)}", {"pk": "S"}, opened=True)
    stores = [
        open_store(f"dynamodb://{name}?endpoint={proxy.url}&index=open&partition=pk%3D{letter}%23{{key}}")
        for letter in "ab"
    ]
    for store, keys in zip(stores, (["one"], ["two", "three"]), strict=True):
        for key in keys:
            write(store, key, PARKED)
    assert [found(store, PARKED) for store in stores] == [["one"], ["three", "two"]]
    assert [surveyed(store).counts[PARKED] for store in stores] == [1, 2]
    assert [surveyed(store).total for store in stores] == [None, None]  # DynamoDB counts all items of the table
    for store in stores:
        store.close()


# --- workers that differ --------------------------------------------------------------------------------------------


def test_what_a_former_worker_completes_is_in_no_count(store, former):
    for key in ("done", "parked"):
        held = write(store, key, IN_PROGRESS)
        change(former, held, COMPLETED if key == "done" else PARKED)
    assert set(surveyed(store).counts.values()) == {0}
    assert found(store, IN_PROGRESS) == []


def test_migrate_enters_what_former_workers_wrote(store, former, dynoxide):
    mixed(former)
    change(former, write(store, "stale", IN_PROGRESS), COMPLETED)
    change(former, write(store, "other", IN_PROGRESS), PARKED)
    (part,) = drive(MIGRATE.needed(store)(), store)
    assert part == ("entries in the index onceward_open: 19", True)
    assert surveyed(store).counts.items() >= {PARKED: 8, RELEASED: 5, IN_PROGRESS: 5, "LAPSED": 2}.items()
    assert "stale" not in entries(dynoxide, store)
    assert not drive(MIGRATE.needed(store)(), store)[0].made
    assert drive(MIGRATE.needed(former)(), former) == []


def test_migrate_follows_a_record_that_changes_meanwhile(store, former, dynoxide, proxy):
    held = write(former, "k", IN_PROGRESS)
    changed = []

    def rule(seen):
        if seen.action == "UpdateItem" and not changed:
            changed.append(True)
            proxy.rule = lambda _: None
            change(former, held, RELEASED)

    proxy.rule = rule
    assert drive(MIGRATE.needed(store)(), store)[0].made
    assert entries(dynoxide, store) == {"k": RELEASED}


def test_a_takeover_enters_what_a_former_worker_claimed(store, former, dynoxide):
    held = write(former, "k", "LAPSED")
    taken = claim_of("k", "b", fence=held.fence + 1, lease=60.0, attempts=2)
    assert drive(store.swap(taken, held), store).won
    assert entries(dynoxide, store) == {"k": IN_PROGRESS}


# --- without the index ----------------------------------------------------------------------------------------------


def test_a_table_without_the_index_counts_nothing_and_says_how_to_make_it(proxy, dynoxide):
    name = dynoxide.table(f"none-{next(_NUMBERS)}")
    store = open_store(f"dynamodb://{name}?endpoint={proxy.url}&index=open")
    change(store, write(store, "k", IN_PROGRESS), PARKED)
    assert surveyed(store) == NOTHING
    assert Once(store).ledger.estimate() is None
    with pytest.raises(StoreError, match=r"has no index onceward_open .*`onceward init --index --store"):
        found(store, PARKED)
    store.close()


def test_a_ledger_without_the_option_asks_nothing_for_a_survey(former, proxy):
    assert surveyed(former) == NOTHING
    assert Once(former).ledger.estimate() is None
    assert proxy.seen == []


@pytest.mark.parametrize(
    ("opened", "option", "level", "says"),
    [
        (True, "&index=open", "ok", "onceward_open"),
        (False, "", "ok", "none"),
        (False, "&index=open", "warning", "the table has no index onceward_open"),
        (True, "", "warning", "has no index=open"),
    ],
)
def test_doctor_tells_whether_the_index_and_the_url_agree(opened, option, level, says, dynoxide, proxy):
    name = dynoxide.table(f"doctor-{next(_NUMBERS)}", opened=opened)
    store = open_store(f"dynamodb://{name}?endpoint={proxy.url}{option}")
    (one,) = [one for one in INSPECT.needed(store)().findings() if one.check == "index of the unfinished"]
    assert one.level == level
    assert says in one.says
    store.close()

"""What a workload costs a month, from counts and prices."""

import json

import pytest

from onceward import Once
from onceward.bill.charges import DAYS, charge
from onceward.bill.measured import measured
from onceward.bill.prices import PACKAGED, StorePrices, prices
from onceward.stores import STORES, open_store
from onceward.stores.capabilities import COSTS
from onceward.stores.costs import Way, Workload

PRICES = StorePrices(
    million_writes=2, million_reads=1, write_unit_hour=0.5, read_unit_hour=0.25, million_requests=3, gb_month=4
)
WAY = Way("onceward", requests=5e6 / DAYS, writes=1e6 / DAYS, reads=2e6 / DAYS, stored=10e9)


def test_on_demand_each_unit_is_charged():
    assert charge(WAY, PRICES, "on-demand", 1).price == pytest.approx(1 * 2 + 2 * 1 + 5 * 3 + 10 * 4)


def test_provisioned_units_are_charged_by_the_hour_for_the_peak():
    way = WAY._replace(requests=0, writes=86400 * 7, reads=86400 * 70, stored=0)
    made = charge(way, PRICES, "provisioned", 3)
    assert made.units == (30, 300)
    assert made.price == pytest.approx((30 * 0.5 + 300 * 0.25) * DAYS * 24)


def test_a_table_has_at_least_one_unit():
    assert charge(Way("idle", 0), PRICES, "provisioned", 1).units == (1, 1)


def test_the_packaged_prices_have_a_day_and_each_kind_of_server():
    listed = prices()
    assert listed.as_of.startswith("20")
    assert {"dynamodb", "postgresql", "sqlite"} <= listed.stores.keys()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: p.pop("as_of"), "missing required field `as_of`"),
        (lambda p: p.update(colour=1), "unknown field `colour`"),
    ],
)
def test_a_file_that_is_no_list_of_prices_is_refused_with_its_place(change, told, tmp_path):
    listed = json.loads(PACKAGED.read_text())
    change(listed)
    (tmp_path / "prices.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=told):
        prices(tmp_path / "prices.json")


# --- what stores count ----------------------------------------------------------------------------------------------


def ways(url, load):
    store = open_store(url)
    try:
        return {one.name: one for one in COSTS.needed(store)(load)}
    finally:
        store.close()


URLS = {
    "dynamodb": "dynamodb://orders",
    "sqlite": "sqlite:///orders.db",
    "postgresql": "postgresql://h/d",
    "mysql": "mysql://u@h/d",
}
REDIS = "redis://h:6379/0"


def test_every_store_with_a_price_is_tried_here():
    assert {scheme for scheme in STORES if scheme in prices().stores} == URLS.keys()


@pytest.mark.parametrize("url", [*URLS.values(), REDIS])
def test_twice_the_messages_ask_for_twice_as_much(url):
    once, twice = ways(url, Workload(1e6, 0.1, steps=3)), ways(url, Workload(2e6, 0.1, steps=3))
    for name, way in once.items():
        assert twice[name][1:] == pytest.approx([2 * number for number in way[1:]])


@pytest.mark.parametrize("url", [*URLS.values(), REDIS])
def test_batches_ask_less_often_and_steps_more_often(url):
    told = ways(url, Workload(1e6, 0.1, steps=3, batch=25))
    plain = told["onceward"].requests
    assert told["onceward, batches of 25"].requests < plain / 5
    assert told["onceward, 3 steps"].requests == pytest.approx(plain + 3 * 0.9e6)


def test_a_transaction_commits_nothing_more_than_its_effect():
    assert ways("postgresql://h/d", Workload(1e6))["onceward, transaction"].commits == 0


def test_a_long_field_costs_redis_more_memory_than_its_bytes():
    short, longer = (ways(REDIS, Workload(100, result=size))["onceward"].stored for size in (60, 70))
    assert longer - short == pytest.approx(100 * 14 * (10 + 750))


def test_other_libraries_are_counted_on_dynamodb():
    told = ways("dynamodb://orders", Workload(100, 0.5))
    assert told["Powertools 3.37"].requests == 150
    assert told["idemkit 1.0"].requests == 200
    assert told["idemkit 1.0"].reads == 50


# --- what a real ledger is like -------------------------------------------------------------------------------------


def test_a_ledger_tells_how_fast_keys_come_and_how_large_results_are(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="shop")
    for number in range(5):
        once.run(f"old-{number}", lambda: "x" * 98)

    def meanwhile(_):
        for number in range(30):
            once.run(f"new-{number}", lambda: "x" * 98)

    load, unknown = measured(once.store, 10.0, Workload(1.0, 0.25), sleep=meanwhile)
    once.close()
    assert load.messages == pytest.approx(30 / 10 * 86400 / 0.75)
    assert (load.result, load.key, load.duplicates) == (100, len("shop:old-1"), 0.25)
    assert len(unknown) == 1
    assert unknown[0].startswith("the share of duplicates")


def test_an_empty_ledger_says_that_sizes_are_unknown(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db")
    load, unknown = measured(once.store, 1.0, Workload(1.0), sleep=lambda _: None)
    once.close()
    assert (load.messages, load.result) == (0, Workload(1.0).result)
    assert unknown[0].startswith("the size of results")

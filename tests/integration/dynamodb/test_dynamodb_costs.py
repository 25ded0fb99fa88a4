"""What `onceward cost` counts for a table is what a server says was consumed, within 5 %."""

import random
import time
from collections import Counter

import boto3
import pytest

from onceward import Claim, Once
from onceward.bill.measured import measured
from onceward.core.drivers import drive
from onceward.observe import StoreRequest
from onceward.stores.capabilities import COSTS, PROVISION
from onceward.stores.costs import Workload
from onceward.stores.dynamodb.costs import item_bytes
from servers import REGION, numbers

_NUMBERS = numbers()
MESSAGES, SHARE = 100, 0.2


class Meter:
    """An observer that adds up requests and units. The answer to a refused write tells none; ``refused`` counts those."""

    def __init__(self):
        self.clear()

    def clear(self):
        self.sums = Counter()

    def __call__(self, event):
        if isinstance(event, StoreRequest):
            self.sums["requests"] += 1
            action = event.action.rpartition(":")[2]
            self.sums["reads" if "Get" in action else "writes"] += event.units or 0
            self.sums["refused"] += event.error.startswith("ConditionalCheckFailed")


@pytest.fixture
def ledger(dynoxide, aws):
    """Makes a ledger with a meter, whose process knows the server's time already."""

    def made(options="", opened=False):
        table = dynoxide.table(f"cost-{next(_NUMBERS)}", opened=opened)
        meter = Meter()
        once = Once(f"dynamodb://{table}?endpoint={dynoxide.url}{options}", observe=[meter], name="shop.orders.charge")
        once.acquire("warm-up").complete()
        meter.clear()
        return once, meter, table

    return made


def stream():
    """Messages of which a fifth come a second time."""
    firsts = [f"order-{number:020}" for number in range(round(MESSAGES * (1 - SHARE)))]
    again = random.Random(7).sample(firsts[:20], k=round(MESSAGES * SHARE))
    rest = [*firsts[20:], *again]
    random.Random(8).shuffle(rest)
    return firsts[:20] + rest


def load_of(**changes):
    key = len("shop.orders.charge:") + len(stream()[0])
    return Workload(MESSAGES, SHARE, key=key)._replace(**changes)


def counted(once, load, way):
    return next(one for one in COSTS.needed(once.store)(load) if one.name == way)


def charged(dynoxide, table):
    """The write units of a refused claim: those of writing the same item."""
    (item, *_) = [one for one in dynoxide.items(table) if "order-" in one["key"]["S"]]
    told = dynoxide.ask("PutItem", TableName=table, Item=item, ReturnConsumedCapacity="TOTAL")
    return told["ConsumedCapacity"]["CapacityUnits"]


def near(counted, measured):
    assert counted == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("options", "way", "refused"),
    [
        ("", "onceward", True),
        ("&probe=read", "onceward, probe=read", False),
        ("&index=open", "onceward, index=open", True),
    ],
)
@pytest.mark.parametrize("result", [2, 600, 3000])
def test_calls_and_duplicates_are_counted(ledger, dynoxide, options, way, refused, result):
    once, meter, table = ledger(options, opened="open" in options)
    for key in stream():
        once.run(key, lambda: "x" * (result - 2))
    once.close()
    told = counted(once, load_of(result=result), way)
    near(told.requests, meter.sums["requests"])
    near(told.reads, meter.sums["reads"])
    again = round(MESSAGES * SHARE) * charged(dynoxide, table) if refused else 0
    assert meter.sums["refused"] == (round(MESSAGES * SHARE) if refused else 0)
    near(told.writes, meter.sums["writes"] + again)


def test_duplicates_that_a_process_remembers_are_free(ledger):
    once, meter, _ = ledger()

    @once(key="order", cache=1000, name="shop.orders.charge")
    def charge(order):
        return "x"

    for key in stream():
        charge(key)
    once.close()
    told = counted(once, load_of(result=3, remembered=1.0), "onceward, cache")
    near(told.requests, meter.sums["requests"])
    near(told.writes, meter.sums["writes"])


def test_steps_are_counted(ledger, dynoxide):
    once, meter, table = ledger()

    @once(key="order", name="shop.orders.charge")
    def charge(order, claim: Claim):
        for number in range(4):
            claim.step(f"step-{number}", lambda: "x" * 298)
        return "x" * 298

    for key in stream():
        charge(key)
    once.close()
    told = counted(once, load_of(result=300, steps=4), "onceward, 4 steps")
    near(told.requests, meter.sums["requests"])
    near(told.writes, meter.sums["writes"] + round(MESSAGES * SHARE) * charged(dynoxide, table))


def test_a_transaction_is_counted_twice(ledger, dynoxide):
    once, meter, table = ledger()
    effects = dynoxide.table(f"effects-{next(_NUMBERS)}")

    @once(key="order", name="shop.orders.charge")
    def charge(order, claim: Claim):
        return claim.transact([{"Put": {"TableName": effects, "Item": {"key": {"S": order}}}}], "x" * 98)

    for key in stream():
        charge(key)
    once.close()
    own = len(dynoxide.items(effects))  # what the effects would cost alone
    told = counted(once, load_of(result=100), "onceward, transact")
    near(told.requests, meter.sums["requests"])
    near(told.writes, meter.sums["writes"] - own + round(MESSAGES * SHARE) * charged(dynoxide, table))


def test_batches_are_counted(ledger):
    once, meter, _ = ledger()
    batch = once.batch(lambda order: "x" * 98, key=lambda order: order, name="shop.orders.charge")
    messages = stream()
    for start in range(0, MESSAGES, 10):
        batch.run(messages[start : start + 10])
    once.close()
    told = counted(once, load_of(result=100, batch=10), "onceward, batches of 10")
    assert told.requests == pytest.approx(
        meter.sums["requests"], rel=0.1
    )  # chance decides which batches have duplicates
    near(told.reads, meter.sums["reads"])
    near(told.writes, meter.sums["writes"])  # the answer to a batch tells what its refused members cost


@pytest.mark.parametrize("result", [100, 5_000, 20_000])
def test_the_size_of_an_item_is_that_of_the_server(ledger, dynoxide, result):
    once, _, table = ledger()
    text = "".join(random.Random(1).choices("0123456789abcdefghijklmnopqrstuvwxyz", k=result))
    once.run("order-1", lambda: text)
    once.close()
    (item,) = [one for one in dynoxide.items(table) if "order-" in one["key"]["S"]]
    near(-(-item_bytes(item) // 1024), charged(dynoxide, table))


def test_rates_are_those_of_the_tables_metrics(ministack, aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    table = f"rates-{next(_NUMBERS)}"
    once = Once(f"dynamodb://{table}")
    drive(PROVISION.needed(once.store)(frozenset()), once.store)
    once.acquire("order-1").complete("x" * 50)
    minutes = [time.time() - 20 - 60 * number for number in range(9)]  # wherever the span begins, it has three of them
    points = [("SuccessfulRequestLatency", 90, {"Operation": "PutItem"}), ("ConditionalCheckFailedRequests", 30, {})]
    client = boto3.client("cloudwatch", endpoint_url=ministack.url, region_name=REGION)
    for name, count, more in points:
        dimensions = [{"Name": key, "Value": value} for key, value in {"TableName": table, **more}.items()]
        for minute in minutes:
            point = {"MetricName": name, "Dimensions": dimensions, "Timestamp": minute}
            values = {"SampleCount": count, "Sum": count, "Minimum": 1, "Maximum": 1}
            data = [{**point, "StatisticValues": values}]
            client.put_metric_data(Namespace="AWS/DynamoDB", MetricData=data)
    load, unknown = measured(once.store, 180, Workload(1.0))
    once.close()
    assert (load.messages, load.duplicates) == (pytest.approx(2.0 * 86400), pytest.approx(0.25))
    assert (load.result, unknown) == (52, [])

"""Messages end to end: a queue, an event source mapping, Lambda functions as processes, and a ledger in DynamoDB.

What counts is the effects' own log, a file that the functions append to. Each order's effect stands there once, whatever the
messages, the handlers and the functions go through, and none is missing.
"""

from collections import Counter
from typing import NamedTuple

import pytest

from onceward import Once, Record
from onceward.core.record import COMPLETED
from places import WORKERS
from servers.needs import numbers
from waiting import until

_NUMBERS = numbers()


class Line(NamedTuple):
    """A line of a function's log: which order, in which message, and at which attempt."""

    order: str
    message: str
    attempt: int


class Shop:
    """A function that takes orders, its ledger, and the files that tell what it did."""

    def __init__(self, ministack, dynoxide, table, folder):
        self.aws = ministack
        self.name = f"shop-{next(_NUMBERS)}"
        self._dynoxide, self._table, self._folder = dynoxide, table, folder
        self._mappings = []
        self.function = None

    def open(self, handler, timeout):
        """Make the function, which is killed after ``timeout`` seconds."""
        files = {name: str(self._folder / name.lower()) for name in ("EFFECTS", "TRIES", "DELIVERIES")}
        code = WORKERS / "lambda_orders.py"
        self.function = self.aws.function(self.name, code, handler, timeout, LEDGER=self.ledger, **files)

    def close(self):
        if self.function is not None:
            self.aws.forget(self.function, *self._mappings)

    def listen(self, queue):
        """Let the queue call the function."""
        self._mappings.append(self.aws.mapping(self.function, self.aws.queue_arn(queue), BatchSize=10))

    def empty(self, queue):
        """Wait until the queue is empty."""
        until(lambda: self.aws.left(queue) == 0, told=lambda: f"tries: {self.tries}\n{self.aws.log}")

    @property
    def ledger(self):
        return f"dynamodb://{self._table}?endpoint={self._dynoxide.url}"

    @property
    def effects(self) -> list[Line]:
        return [Line(order, message, int(attempt)) for order, message, attempt in self._lines("effects")]

    @property
    def tries(self) -> list[Line]:
        return [Line(order, message, int(attempt)) for order, message, attempt in self._lines("tries")]

    @property
    def deliveries(self) -> Counter:
        """How often each message was given to the function."""
        return Counter(message for (message,) in self._lines("deliveries"))

    @property
    def records(self) -> dict[str, Record]:
        """What the ledger holds, by order."""
        once = Once(self.ledger)
        held = {record.key.removeprefix("orders:"): record for record, _ in once.ledger.records("orders:")}
        once.close()
        return held

    @property
    def completed(self) -> set[str]:
        return {order for order, record in self.records.items() if record.status == COMPLETED}

    def _lines(self, name):
        path = self._folder / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def shop(ministack, dynoxide, table, aws, tmp_path):
    made = Shop(ministack, dynoxide, table, tmp_path)
    yield made
    made.close()


def each_once(shop, orders):
    """Assert that each of the orders took effect exactly once, and nothing else did; and that the ledger knows."""
    assert Counter(effect.order for effect in shop.effects) == Counter(dict.fromkeys(orders, 1))
    assert shop.completed == set(orders)


def attempt_of(shop, order):
    return next(effect.attempt for effect in shop.effects if effect.order == order)


def sent(shop, queue, orders):
    """Send orders, of which each is an id or a dict; return the messages' ids."""
    bodies = [{"id": order} if isinstance(order, str) else order for order in orders]
    return [shop.aws.send(queue, body) for body in bodies]


def test_each_order_takes_effect_once_despite_copies_and_failures(shop):
    shop.open("sqs_threads", 3)
    queue = shop.aws.queue(shop.name, VisibilityTimeout=3)
    plain, failing = [f"plain{n}" for n in range(16)], [f"failing{n}" for n in range(6)]
    first = [*plain, *({"id": order, "fails": 2} for order in failing)]
    sent(shop, queue, first)
    shop.listen(queue)
    sent(shop, queue, first[::2])  # the same orders again, while the first ones are at work
    shop.empty(queue)
    again = sent(shop, queue, plain[:3] + failing[:3])  # and when they are done
    shop.empty(queue)
    each_once(shop, plain + failing)
    assert {attempt_of(shop, order) for order in failing} == {3}
    assert set(again) <= set(shop.deliveries)
    assert not {line.message for line in shop.tries} & set(again)


def test_a_function_that_times_out_mid_batch_loses_and_doubles_nothing(shop):
    shop.open("sqs_async", 3)
    queue = shop.aws.queue(shop.name, VisibilityTimeout=4)
    orders = [f"o{n}" for n in range(8)]
    messages = sent(shop, queue, [{"id": order, "hangs": int(order == "o3")} for order in orders])
    shop.listen(queue)
    shop.empty(queue)
    each_once(shop, orders)
    assert min(shop.deliveries[message] for message in messages) >= 2  # all came again after the kill
    assert attempt_of(shop, "o3") == 2
    assert [attempt_of(shop, order) for order in orders[:3]] == [1, 1, 1]  # done and recorded before the kill

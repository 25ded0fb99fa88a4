"""What the workers for NATS, Redis Streams and RabbitMQ do alike, on real servers."""

import json
import threading
import time

import pytest

from onceward.core.record import PARKED
from waiting import PATIENCE, until

# Options of a worker that gets much, and keeps it for long.
GREEDY = {"nats": {}, "redis": {"idle": 3600.0}, "rabbitmq": {"prefetch": 9}}


@pytest.fixture(params=["nats_shop", "redis_shop", "rabbit_shop"])
def shop(request):
    return request.getfixturevalue(request.param)


def test_one_that_fails_comes_again_after_a_pause(shop, work):
    tries = []

    def handler(order):
        tries.append(time.monotonic())
        if len(tries) < 4:
            raise ZeroDivisionError

    shop.publish({"id": 1})
    work(handler)
    until(lambda: len(tries) == 4)
    assert tries[-1] - tries[0] >= 0.1 + 0.2 + 0.4


def test_a_poisoned_message_is_parked_and_published_with_its_reason(shop, work, once):
    def handler(order):
        raise ZeroDivisionError("an odd order")

    shop.publish({"id": 7}, who="us")
    work(handler, max_attempts=2)
    letter = shop.letter()
    assert json.loads(letter.body) == {"id": 7}
    told = {name: letter.headers[f"onceward-{name}"] for name in ("status", "key", "from", "receives")}
    assert told == {"status": "parked", "key": "shop:7", "from": shop.orders, "receives": "2"}
    assert "an odd order" in letter.headers["onceward-reason"]
    assert letter.headers["who"] == "us"
    assert once.ledger.show("shop:7")[0].status == PARKED
    until(lambda: shop.pending() == 0)


def test_what_runs_at_a_stop_is_finished_and_the_rest_goes_back(shop, work):
    begun, go, ran = threading.Event(), threading.Event(), []

    def handler(order):
        begun.set()
        go.wait(PATIENCE)
        ran.append(order["id"])

    shop.publish(*[{"id": number} for number in range(9)])
    worker = work(handler, concurrency=1, **GREEDY[shop.broker])
    assert begun.wait(PATIENCE)
    worker.stop()
    others = []
    work(lambda order: others.append(order["id"]), **GREEDY[shop.broker])
    until(lambda: len(others) == 8)  # others have them while the handler runs
    go.set()
    until(lambda: worker.in_flight == 0)
    assert len(ran) == 1

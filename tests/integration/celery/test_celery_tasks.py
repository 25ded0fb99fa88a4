"""Tasks of real Celery workers over Redis: once each, and each end of a delivery as Celery knows it."""

import json
import os
import signal

import pytest
from celery import chain, chord

from fixtures import closing_fixture
from queues.celery_workers import PATIENCE, Shop
from servers.redis import Redis

broker = closing_fixture(Redis, scope="module")


@pytest.fixture
def shop(broker, tmp_path):
    """An application without workers, its broker empty."""
    broker.ask("FLUSHALL")
    made = Shop(broker.url, tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_duplicate_gets_the_recorded_result_in_every_pool(shop, pool):
    shop.start("--pool", pool, "-c", 2)
    sent = [shop.send("charge", {"id": number}) for number in (1, 2, 1, 1, 2)]
    results = [shop.get(one) for one in sent]
    assert [result["receipt"] for result in results] == [1, 2, 1, 1, 2]
    assert {result["attempt"] for result in results} == {1}
    same = shop.send("by_id", task_id="one"), shop.send("by_id", task_id="one"), shop.send("by_id", task_id="two")
    assert [shop.get(one) for one in same] == ["one", "one", "two"]
    assert shop.get(shop.send("based", "b")) == shop.get(shop.send("based", "b")) == "b"
    assert shop.journal() == dict.fromkeys(["charge 1", "charge 2", "by_id one", "by_id two", "based b"], 1)


def test_a_busy_task_comes_again_and_that_is_no_retry(shop):
    shop.start("-c", 2)
    first, second = shop.send("slow", "a"), shop.send("slow", "a")
    shop.until(lambda: "comes again" in shop.log)
    assert {first.state, second.state} == {"PENDING"}
    shop.open()
    assert [shop.get(first), shop.get(second)] == [0, 0]
    assert shop.journal() == {"begin a": 1, "end a 0": 1}
    assert "retry:" not in shop.log


def test_a_task_comes_again_while_the_ledger_is_away(shop, tmp_path, broker):
    ledger = Redis(appendonly="yes")
    other = Shop(broker.url, tmp_path, ledger=ledger.url)
    try:
        ledger.kill()
        other.start("-c", 1)
        result = other.send("charge", {"id": 1})
        other.until(lambda: "comes again" in other.log)
        assert other.journal() == {}
        ledger.start()
        assert other.get(result) == {"receipt": 1, "attempt": 1}
    finally:
        other.stop()
        ledger.stop()


def test_a_task_that_replaces_itself_runs_each_time(shop):
    shop.start("-c", 1)
    assert shop.get(shop.send("counts", 2)) == "end"
    assert shop.journal() == {"counts 2": 1, "counts 1": 1, "counts 0": 1}


def test_a_parked_task_waits_as_a_dead_letter_until_it_is_unparked(shop, broker):
    shop.start("-c", 1)
    result = shop.send("refused", "a")
    shop.until(lambda: broker.client().llen("celery.onceward-dead") == 1)
    shop.until(lambda: result.state == "FAILURE")
    assert shop.journal() == {"refused a": 1}
    headers = json.loads(broker.client().lindex("celery.onceward-dead", 0))["headers"]
    told = [headers[name] for name in ("id", "onceward-status", "onceward-key", "onceward-from")]
    assert told == [result.id, "parked", "shop.refused:a", "celery"]
    assert "onceward unpark" in headers["onceward-reason"]
    shop.open("fixed")
    shop.once.ledger.unpark("shop.refused:a")
    shop.start("-c", 1, "-Q", "celery.onceward-dead")
    shop.until(lambda: shop.client.AsyncResult(result.id).state == "SUCCESS")
    assert shop.journal() == {"refused a": 2}
    assert broker.client().llen("celery.onceward-dead") == 0


def test_a_killed_child_leaves_its_task_to_another(shop):
    shop.start("-c", 2)
    result = shop.send("slow", "a")
    shop.until(lambda: shop.journal()["begin a"] == 1)
    worker = shop.record("slow", "a").worker
    os.kill(int(worker.rpartition("/")[2]), signal.SIGKILL)
    shop.until(lambda: shop.journal()["begin a"] == 2)
    shop.open()
    assert shop.get(result) == 0
    assert shop.record("slow", "a").attempts == 2


@pytest.mark.nightly
def test_a_soft_time_limit_leaves_the_key_claimed(shop):
    shop.start("-c", 1)
    shop.get(shop.send("based", "b"))  # the limit must not come while the child is still loading
    result = shop.send("slow", "a", soft_time_limit=3)
    shop.until(lambda: result.state == "FAILURE")
    assert shop.status("slow", "a") == "IN_PROGRESS"
    assert "SoftTimeLimitExceeded" in repr(result.result)
    shop.open()
    assert shop.get(shop.send("slow", "a")) == 0
    assert shop.journal() == {"based b": 1, "begin a": 2, "end a 0": 1}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_warm_shutdown_waits_for_the_task(shop, pool):
    worker = shop.start("--pool", pool, "-c", 1)
    result = shop.send("slow", "a")
    shop.until(lambda: shop.journal()["begin a"] == 1)
    worker.send_signal(signal.SIGTERM)
    shop.until(lambda: "Warm shutdown" in shop.log)
    shop.open()
    assert worker.wait(PATIENCE) == 0
    assert shop.get(result) == 0
    assert shop.status("slow", "a") == "COMPLETED"


def again(shop, broker):
    """Let the broker deliver every message that it has a second time, as after a lost acknowledgement."""
    with broker.client() as client:
        for message in client.lrange("celery", 0, -1):
            copy = json.loads(message)
            copy["properties"]["delivery_tag"] += "-again"
            client.lpush("celery", json.dumps(copy))


@pytest.mark.nightly
def test_a_replay_goes_on_with_its_chain_and_chord_once(shop, broker):
    charge, notify, total = (shop.client.signature(f"shop.{name}") for name in ("charge", "notify", "total"))
    chained = chain(charge.clone(({"id": 1},)), notify.clone()).apply_async()
    summed = chord([charge.clone(({"id": number},)) for number in (2, 3)], total.clone()).apply_async()
    again(shop, broker)
    shop.start("-c", 1)
    assert shop.get(chained) == "notified 1"
    assert shop.get(summed) == 2
    assert shop.get(shop.send("based", "the last"))
    once = ["charge 1", "charge 2", "charge 3", "notify 1 ", "total 2", "based the last"]
    assert shop.journal() == dict.fromkeys(once, 1)

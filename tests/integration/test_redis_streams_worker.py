"""The worker for Redis Streams on a real server: outcomes, pauses, claims, dead letters, and servers that lose entries."""

import threading
import time

import pytest

from observing import note_outcomes
from onceward.redis_streams import RedisStreamsWorker
from servers.redis import Redis
from tables import each
from waiting import PATIENCE, until


@pytest.fixture
def server(redis_kept):
    return redis_kept


@pytest.fixture
def client(server):
    with server.client() as made:
        yield made


@pytest.fixture
def shop(redis_shop):
    return redis_shop


@pytest.fixture
def stream(shop):
    return shop.orders


def letter(client, stream):
    """Return the fields of the first dead letter, when it is there."""
    return until(lambda: client.xrange(f"{stream}.onceward-dead"))[0][1]


def test_the_key_is_a_header_or_the_place(shop, client, stream, work, once):
    shop.publish({"n": 1}, **{"Idempotency-Key": "order-1"})
    second = client.xadd(stream, {"n": "2"})
    client.xadd(stream, {"n": "3", "Idempotency-Key": "order-3"})
    work(lambda order: None, key=None)
    until(lambda: once.ledger.stats()["COMPLETED"] == 3)
    keys = {record.key for record, _ in once.ledger.records()}
    assert keys == {"shop:order-1", f"shop:{stream}/{second}", "shop:order-3"}


def test_fields_without_a_key_and_json_without_end_are_dead_letters(client, stream, work):
    client.xadd(stream, {"n": "1", "Onceward-Key": "shop:victim"})
    work(lambda order: None)
    client.xadd(stream, {"__data__": '{"x": ' + 100_000 * "["})
    told = letter(client, stream)
    assert (told["n"], told["onceward-status"]) == ("1", "malformed")
    assert "Onceward-Key" not in told  # a malformed message names no key
    until(lambda: client.xlen(f"{stream}.onceward-dead") == 2)


def test_a_failover_right_after_a_dead_letter_loses_the_letter_and_its_acknowledgement_together(
    shop, client, stream, work
):
    shop.publish("malformed")
    with client.monitor() as commands:
        work(lambda order: None)
        letter(client, stream)
        told = [next(commands.listen())["command"].split()[0]]
        while "EVAL XADD XACK" not in " ".join(told[-3:]) and len(told) < 200:
            told.append(next(commands.listen())["command"].split()[0])
    assert told[-3:] == ["EVAL", "XADD", "XACK"]


def test_an_entry_whose_dead_letter_is_not_taken_is_not_acknowledged(shop, client, stream, work):
    client.set(f"{stream}.onceward-dead", "no stream")
    shop.publish("malformed")
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    work(lambda order: None)
    until(lambda: len(told) > 1)
    assert shop.pending() == 1
    client.delete(f"{stream}.onceward-dead")
    letter(client, stream)
    until(lambda: shop.pending() == 0)


def test_a_handler_longer_than_the_idle_time_keeps_its_entry(shop, work):
    told, begun = [], []
    note_outcomes(lambda outcome: told.append(outcome.record.raw.receives))

    def handler(order):
        begun.append(order)
        time.sleep(8.0)

    shop.publish({"id": 7})
    work(handler)
    work(handler)
    until(lambda: told)
    until(lambda: shop.pending() == 0)
    assert (told, len(begun)) == ([1], 1)


def test_a_worker_that_was_paused_does_not_claim_what_it_holds_itself(shop, client, stream, work):
    begun, go, told = [], threading.Event(), []
    note_outcomes(lambda outcome: told.append(outcome.status))

    def handler(order):
        begun.append(order)
        go.wait(PATIENCE)

    shop.publish({"id": 7})
    work(handler)
    until(lambda: begun)
    (entry,) = client.xpending_range(stream, "shop", "-", "+", 1)
    for _ in range(20):  # as if it had not been renewed
        client.execute_command(
            "XCLAIM", stream, "shop", entry["consumer"], 0, entry["message_id"], "IDLE", 600_000, "JUSTID"
        )
        time.sleep(0.1)
    go.set()
    until(lambda: shop.pending() == 0)
    assert (told[0], len(begun)) == ("done", 1)  # what it claims before it has acknowledged is a replay


def test_what_waits_for_its_pause_at_a_stop_goes_to_others(shop, work, once):
    seen = []
    shop.publish({"id": 1})
    worker = work(lambda order: 1 / 0, backoff=(2.0, 2.0), idle=3600.0)
    until(lambda: once.ledger.stats()["RELEASED"] == 1 and worker.in_flight == 0)
    worker.stop()
    work(lambda order: seen.append(order["id"]), idle=3600.0)
    until(lambda: seen == [1])


def test_a_deleted_stream_is_made_again(shop, client, stream, work, caplog):
    seen = []
    shop.publish({"id": 1})
    work(lambda order: seen.append(order["id"]))
    until(lambda: seen == [1])
    client.delete(stream)
    shop.publish({"id": 2})
    until(lambda: seen == [1, 2])
    assert "was deleted" in caplog.text


@each(
    ("settings", "what"),
    [
        ({}, "append-only file is off"),
        ({"appendonly": "yes", "maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}, "evicts streams"),
    ],
)
def test_a_server_that_loses_entries_is_refused_at_start(once, settings, what):
    losing = Redis(**settings)
    try:
        with pytest.raises(ValueError, match=f"loses messages.*{what}"):
            RedisStreamsWorker(once, "orders", print, url=losing.url).run()
    finally:
        losing.stop()


@each("options", [{"idle": 0}, {"dead": "orders"}])
def test_options_that_are_not_valid_are_refused(once, options):
    with pytest.raises(ValueError):
        RedisStreamsWorker(once, "orders", print, **options)

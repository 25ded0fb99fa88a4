"""The worker for Redis Streams on a real server: outcomes, pauses, claims, dead letters, and servers that lose entries."""

import json
import threading
import time

import pytest

from observing import note_outcomes
from onceward.consumers.broker import BrokerError
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


def publish(client, stream, *orders, **headers):
    for order in orders:
        client.xadd(stream, {"__data__": json.dumps({"data": json.dumps(order), "headers": headers})})


def pending(client, stream, group="shop"):
    return client.xpending(stream, group)["pending"]


def letter(client, stream):
    """Return the fields of the first dead letter, when it is there."""
    return until(lambda: client.xrange(f"{stream}.onceward-dead"))[0][1]


def test_the_key_is_a_header_or_the_place(server, client, stream, work, once):
    publish(client, stream, {"n": 1}, **{"Idempotency-Key": "order-1"})
    second = client.xadd(stream, {"n": "2"})
    client.xadd(stream, {"n": "3", "Idempotency-Key": "order-3"})
    work(lambda order: None, key=None)
    until(lambda: once.ledger.stats()["COMPLETED"] == 3)
    keys = {record.key for record, _ in once.ledger.records()}
    assert keys == {"shop:order-1", f"shop:{stream}/{second}", "shop:order-3"}


def test_plain_fields_without_a_key_are_a_dead_letter_with_fields(client, stream, work):
    client.xadd(stream, {"n": "1", "Onceward-Key": "shop:victim"})
    work(lambda order: None)
    told = letter(client, stream)
    assert (told["n"], told["onceward-status"]) == ("1", "malformed")
    assert "Onceward-Key" not in told  # a malformed message names no key


def test_a_failover_right_after_a_dead_letter_loses_the_letter_and_its_acknowledgement_together(client, stream, work):
    publish(client, stream, "malformed")
    with client.monitor() as commands:
        work(lambda order: None)
        letter(client, stream)
        told = [next(commands.listen())["command"].split()[0]]
        while "EVAL XADD XACK" not in " ".join(told[-3:]) and len(told) < 200:
            told.append(next(commands.listen())["command"].split()[0])
    assert told[-3:] == ["EVAL", "XADD", "XACK"]


def test_an_entry_whose_dead_letter_is_not_taken_is_not_acknowledged(client, stream, work):
    client.set(f"{stream}.onceward-dead", "no stream")
    publish(client, stream, "malformed")
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    work(lambda order: None)
    until(lambda: len(told) > 1)
    assert pending(client, stream) == 1
    client.delete(f"{stream}.onceward-dead")
    letter(client, stream)
    until(lambda: pending(client, stream) == 0)


def test_an_entry_that_is_nested_without_end_is_a_dead_letter_and_the_worker_goes_on(client, stream, work):
    seen = []
    client.xadd(stream, {"__data__": '{"x": ' + 100_000 * "["})
    publish(client, stream, {"id": 1})
    work(lambda order: seen.append(order["id"]))
    assert letter(client, stream)["onceward-status"] == "malformed"
    until(lambda: seen == [1])


def test_a_malformed_message_of_the_outbox_names_no_key_of_another(client, stream, work):
    publish(client, stream, {"n": 1}, **{"onceward-key": "shop:victim"})
    work(lambda order: None)
    headers = json.loads(letter(client, stream)["__data__"])["headers"]
    assert headers["onceward-status"] == "malformed"
    assert "onceward-key" not in headers


def test_a_handler_longer_than_the_idle_time_keeps_its_entry(client, stream, work):
    told, begun = [], []
    note_outcomes(lambda outcome: told.append(outcome.record.raw.receives))

    def handler(order):
        begun.append(order)
        time.sleep(8.0)

    publish(client, stream, {"id": 7})
    work(handler)
    work(handler)
    until(lambda: told)
    until(lambda: pending(client, stream) == 0)
    assert (told, len(begun)) == ([1], 1)


def test_what_waits_for_its_pause_at_a_stop_goes_to_others(client, stream, work):
    failed, seen = threading.Event(), []

    def handler(order):
        failed.set()
        raise ZeroDivisionError

    publish(client, stream, {"id": 1})
    worker = work(handler, backoff=(2.0, 2.0), idle=3600.0)
    assert failed.wait(PATIENCE)
    until(lambda: worker.in_flight == 0)
    worker.stop()
    work(lambda order: seen.append(order["id"]), idle=3600.0)
    until(lambda: seen == [1])


def test_a_consumer_that_ends_leaves_no_name_behind(server, client, stream, once):
    publish(client, stream, {"id": 1})
    RedisStreamsWorker(once, stream, lambda order: None, url=server.url, key="order.id").run(until_empty=True)
    assert client.xinfo_consumers(stream, "shop") == []


def test_entries_that_are_trimmed_while_they_wait_are_told(client, stream, work, caplog):
    failed = threading.Event()

    def handler(order):
        failed.set()
        raise ZeroDivisionError

    publish(client, stream, {"id": 1})
    worker = work(handler, backoff=(1.0, 1.0))
    assert failed.wait(PATIENCE)
    client.xtrim(stream, maxlen=0)
    until(lambda: "deleted before they were handled" in caplog.text)
    assert not worker.stopping


def test_a_deleted_stream_is_made_again(client, stream, work, caplog):
    seen = []
    publish(client, stream, {"id": 1})
    work(lambda order: seen.append(order["id"]))
    until(lambda: seen == [1])
    client.delete(stream)
    publish(client, stream, {"id": 2})
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
        with pytest.raises(ValueError, match=f"loses the entries.*{what}"):
            RedisStreamsWorker(once, "orders", print, url=losing.url).run()
    finally:
        losing.stop()


def test_a_server_that_is_away_is_told_without_the_password(once):
    with pytest.raises(BrokerError) as told:
        RedisStreamsWorker(once, "orders", print, url="redis://us:secret@127.0.0.1:1/0").run()
    assert "secret" not in str(told.value)


def test_what_is_no_stream_is_refused(server, client, stream, once):
    client.set(stream, "text")
    with pytest.raises(BrokerError, match="WRONGTYPE"):
        RedisStreamsWorker(once, stream, print, url=server.url).run()


@each("options", [{"idle": 0}, {"dead": "orders"}])
def test_options_that_are_not_valid_are_refused(once, options):
    with pytest.raises(ValueError):
        RedisStreamsWorker(once, "orders", print, **options)

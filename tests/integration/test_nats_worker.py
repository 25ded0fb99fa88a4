"""The worker for JetStream on a real server: outcomes, pauses, dead letters, and settings that lose messages."""

import asyncio
import json
import threading
import time
import uuid

import nats as client
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from observing import note_outcomes
from onceward import Once
from onceward.consumers.broker import BrokerError
from onceward.core.record import PARKED
from onceward.nats import NatsWorker
from onceward.nats.settings import takes

PATIENCE = 120.0


class Shop:
    """A stream of its own on the run's server."""

    def __init__(self, server, **settings):
        self.url = server.url
        name = f"n{uuid.uuid4().hex[:8]}"
        self.stream, self.orders = name.upper(), f"{name}.orders"
        self.dead = f"{self.orders}.onceward-dead"
        told = {"name": self.stream, "subjects": [self.orders], "storage": StorageType.FILE} | settings
        self.do(lambda jetstream: jetstream.add_stream(StreamConfig(**told)))

    def do(self, work):
        """Return what ``work`` of JetStream gives."""

        async def run():
            connection = await client.connect(self.url)
            try:
                return await work(connection.jetstream(timeout=30))
            finally:
                await connection.close()

        return asyncio.run(run())

    def publish(self, *orders, **headers):
        async def work(jetstream):
            for order in orders:
                body = order if isinstance(order, bytes) else json.dumps(order).encode()
                await jetstream.publish(self.orders, body, headers=headers or None)

        self.do(work)

    def consumer(self, **settings):
        told = {"durable_name": "shop", "filter_subject": self.orders, "ack_policy": AckPolicy.EXPLICIT} | settings
        self.do(lambda jetstream: jetstream.add_consumer(self.stream, ConsumerConfig(**told)))

    def info(self):
        return self.do(lambda jetstream: jetstream.consumer_info(self.stream, "shop"))

    def letter(self, stream=None):
        """Return the first dead letter, when it is there."""

        async def work(jetstream):
            try:
                return await jetstream.get_msg(self.dead.replace(".", "-"), 1)
            except client.js.errors.NotFoundError:
                return None

        return until(lambda: self.do(work))


@pytest.fixture
def shop(nats):
    return Shop(nats)


@pytest.fixture
def once():
    made = Once("memory:", name="shop")
    yield made
    made.close()


@pytest.fixture
def work(once, shop):
    """Give a function that starts a worker in a thread; it is stopped at the end."""
    running = []

    def start(handler, **options):
        settings = {"url": shop.url, "key": "order.id", "backoff": (0.2, 4.0)} | options
        worker = NatsWorker(once, settings.pop("subject", shop.orders), handler, **settings)
        thread = threading.Thread(target=worker.run)
        thread.start()
        running.append((worker, thread))
        return worker

    yield start
    for worker, thread in running:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _nobody_noted():
    """Outcomes of later tests are not told to this one's."""
    yield
    note_outcomes(lambda _: None)


def until(condition):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def test_a_message_published_three_times_takes_effect_once(shop, work):
    effects, told = [], []
    note_outcomes(lambda outcome: told.append(outcome.status))
    shop.publish(*[{"id": number} for number in (1, 2)] * 3)
    work(lambda order: effects.append(order["id"]))
    until(lambda: len([status for status in told if status in {"done", "replayed"}]) == 6)
    assert sorted(effects) == [1, 2]
    until(lambda: shop.info().num_ack_pending == 0)


def test_the_key_is_a_header_or_the_message_id_or_the_place(shop, work, once):
    shop.publish({"n": 1}, **{"Idempotency-Key": "order-1"})
    shop.publish({"n": 2}, **{"Nats-Msg-Id": "m-2"})
    shop.publish({"n": 3})
    work(lambda order: None, key=None)
    until(lambda: once.ledger.stats()["COMPLETED"] == 3)
    keys = sorted(record.key.removeprefix("shop:") for record, _ in once.ledger.records())
    assert keys[1:] == ["m-2", "order-1"]
    assert keys[0].startswith(f"{shop.stream}/3/")


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

    shop.publish({"id": 7}, who="us", **{"Nats-Msg-Id": "m-7"})
    work(handler, max_attempts=2)
    letter = shop.letter()
    assert json.loads(letter.data) == {"id": 7}
    assert letter.headers["who"] == "us"
    assert letter.headers["onceward-status"] == "parked"
    assert "an odd order" in letter.headers["onceward-reason"]
    assert letter.headers["onceward-key"] == "shop:7"
    assert letter.headers["onceward-from"] == shop.orders
    assert once.ledger.show("shop:7")[0].status == PARKED
    until(lambda: shop.info().num_ack_pending == 0)


def test_a_message_that_is_no_order_is_a_dead_letter_that_names_no_key_of_another(shop, work):
    shop.publish(b"{", **{"Onceward-Key": "shop:victim"})
    work(lambda order: None)
    headers = shop.letter().headers
    assert headers["onceward-status"] == "malformed"
    assert "onceward-key" not in map(str.lower, headers)


def test_a_busy_message_waits_for_the_other_workers_lease(shop, work, once):
    effects, told = [], []
    note_outcomes(lambda outcome: told.append(outcome.status))
    held = once.acquire(7, lease=3.0, heartbeat=0)
    shop.publish({"id": 7})
    work(lambda order: effects.append(order["id"]))
    until(lambda: effects)
    assert held.lost
    assert told.count("busy") <= 4


def test_a_handler_longer_than_the_ack_wait_keeps_its_message(shop, work):
    deliveries, begun = [], []
    note_outcomes(lambda outcome: deliveries.append(outcome.record.raw.metadata.num_delivered))
    shop.consumer(ack_wait=3.0)

    def handler(order):
        begun.append(order)
        time.sleep(8.0)

    shop.publish({"id": 7})
    work(handler)
    until(lambda: deliveries)
    assert (deliveries, len(begun)) == ([1], 1)


def test_what_runs_at_a_stop_is_finished_and_the_rest_goes_back(shop, work):
    begun, go, ran = threading.Event(), threading.Event(), []

    def handler(order):
        begun.set()
        go.wait(PATIENCE)
        ran.append(order["id"])

    shop.publish(*[{"id": number} for number in range(9)])
    worker = work(handler, concurrency=1)
    assert begun.wait(PATIENCE)
    worker.stop()
    go.set()
    until(lambda: worker.in_flight == 0)
    assert len(ran) == 1
    others = []
    work(lambda order: others.append(order["id"]))
    until(lambda: len(others) == 8)


def test_a_subject_with_wildcards_is_read_and_needs_a_dead_subject(nats, once, work):
    wild = Shop(nats, subjects=["wild.*.paid"])
    with pytest.raises(ValueError, match="without wildcards"):
        NatsWorker(once, "wild.*.paid", print, url=wild.url)
    with pytest.raises(ValueError, match="its own dead letters"):
        NatsWorker(once, "wild.*.paid", print, url=wild.url, dead="wild.eu.paid")
    wild.orders = "wild.eu.paid"
    wild.publish({"id": 3})
    seen = []
    work(lambda order: seen.append(order["id"]), subject="wild.*.paid", dead=f"{wild.stream}.dead", url=wild.url)
    until(lambda: seen == [3])


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"storage": StorageType.MEMORY}, "in memory"),
        ({"retention": RetentionPolicy.WORK_QUEUE, "max_age": 60}, "max_age"),
        ({"retention": RetentionPolicy.WORK_QUEUE, "max_msgs": 5}, "oldest messages"),
    ],
)
def test_a_stream_that_loses_messages_is_refused_at_start(nats, once, settings, what):
    bad = Shop(nats, **settings)
    with pytest.raises(ValueError, match=f"loses messages.*{what}"):
        NatsWorker(once, bad.orders, print, url=bad.url).run()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"ack_policy": AckPolicy.NONE}, "acknowledge"),
        ({"max_deliver": 5}, "max_deliver"),
        ({"inactive_threshold": 60.0}, "inactive_threshold"),
        ({"headers_only": True}, "headers_only"),
    ],
)
def test_a_consumer_that_loses_messages_is_refused_at_start(shop, once, settings, what):
    shop.consumer(**settings)
    with pytest.raises(ValueError, match=f"loses messages.*{what}"):
        NatsWorker(once, shop.orders, print, url=shop.url).run()


def test_a_consumer_of_another_subject_is_refused_at_start(nats, once):
    other = Shop(nats, subjects=["other.>"])
    other.orders = "other.one"
    other.consumer()
    with pytest.raises(ValueError, match=r"it reads other\.one"):
        NatsWorker(once, "other.two", print, url=other.url).run()


def test_a_stream_with_a_limit_is_only_warned_of(nats, once, caplog):
    limited = Shop(nats, max_age=3600)
    NatsWorker(once, limited.orders, print, url=limited.url).run(until_empty=True)
    assert "not handled within 3600 s is lost" in caplog.text


def test_a_missing_stream_and_a_server_that_is_away_are_told(nats, once):
    with pytest.raises(BrokerError, match="no stream takes nowhere"):
        NatsWorker(once, "nowhere", print, url=nats.url).run()
    with pytest.raises(BrokerError) as told:
        NatsWorker(once, "orders", print, url="nats://us:secret@127.0.0.1:1").run()
    assert "Connect call failed" in str(told.value)
    assert "secret" not in str(told.value)


def test_a_consumer_deleted_under_a_worker_ends_it(shop, once):
    ended = []

    def run():
        try:
            NatsWorker(once, shop.orders, print, url=shop.url).run()
        except BrokerError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()

    async def delete(jetstream):
        try:
            return await jetstream.delete_consumer(shop.stream, "shop")
        except client.js.errors.NotFoundError:
            return False

    until(lambda: shop.do(delete))
    thread.join(PATIENCE)
    assert "was deleted" in ended[0]


@pytest.mark.parametrize(
    ("pattern", "subject", "taken"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a", "a.b", False),
    ],
)
def test_subjects_match_as_the_server_matches_them(pattern, subject, taken):
    assert takes(pattern, subject) is taken

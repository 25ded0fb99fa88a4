"""The worker for JetStream on a real server: outcomes, pauses, dead letters, and settings that lose messages."""

import threading
import time

import pytest
from nats.js.api import AckPolicy, DiscardPolicy, RetentionPolicy, StorageType
from nats.js.errors import NotFoundError

from observing import note_outcomes
from onceward.consumers.broker import BrokerError
from onceward.nats import NatsWorker
from queues.shops import NatsShop
from tables import each
from waiting import until, working


@pytest.fixture
def shop(nats_shop):
    return nats_shop


def test_the_key_is_a_header_or_the_message_id_or_the_place(shop, work, once):
    shop.publish({"n": 1}, **{"Idempotency-Key": "order-1"})
    shop.publish({"n": 2}, **{"Nats-Msg-Id": "m-2"})
    shop.publish({"n": 3})
    work(lambda order: None, key=None)
    until(lambda: once.ledger.stats()["COMPLETED"] == 3)
    keys = sorted(record.key.removeprefix("shop:") for record, _ in once.ledger.records())
    assert keys[1:] == ["m-2", "order-1"]
    assert keys[0].startswith(f"{shop.stream}/3/")


def test_a_message_that_is_no_order_is_a_dead_letter_that_names_no_key_of_another(shop, work):
    shop.publish(b"{", **{"Onceward-Key": "shop:victim"})
    work(lambda order: None)
    headers = shop.letter().headers
    assert headers["onceward-status"] == "malformed"
    assert "onceward-key" not in map(str.lower, headers)


def refuse(order):
    raise ZeroDivisionError


def test_a_duplicate_of_a_dead_letter_that_is_gone_is_stored(shop, once):
    """The first try stores a letter, and its answer is lost. An operator deletes the letter before the second try."""
    shop.publish({"id": 7})
    worker = shop.worker(once, refuse, max_attempts=1)
    broker, dead_letter, tries = worker._broker, worker._broker.dead_letter, []

    async def lose_the_first_answer(message, headers):
        await dead_letter(message, headers)
        if not tries:
            tries.append(message)
            await broker._jetstream.purge_stream(broker._letters)
            raise BrokerError("no answer")

    broker.dead_letter = lose_the_first_answer
    with working(worker):
        until(lambda: tries and shop.pending() == 0)
    assert shop.letters() == 1


MEMORY = {"storage": StorageType.MEMORY}
WORK_QUEUE = {"retention": RetentionPolicy.WORK_QUEUE}


@each(
    ("what", "settings", "says"),
    [
        ("messages", MEMORY, "in memory"),
        ("messages", {**WORK_QUEUE, "max_age": 60}, "max_age"),
        ("messages", {**WORK_QUEUE, "max_msgs": 5}, "oldest messages"),
        ("letters", MEMORY, "in memory"),
        ("letters", {"retention": RetentionPolicy.INTEREST}, "no consumer waits"),
        ("letters", {"max_age": 3600}, "max_age"),
        ("letters", {"max_msgs_per_subject": 1, "discard": DiscardPolicy.NEW}, "oldest"),
        ("letters", {"no_ack": True}, "no_ack"),
        ("consumer", {"ack_policy": AckPolicy.NONE}, "acknowledge"),
        ("consumer", {"max_deliver": 5}, "max_deliver"),
        ("consumer", {"inactive_threshold": 60.0}, "inactive_threshold"),
        ("consumer", {"headers_only": True}, "headers_only"),
    ],
)
def test_settings_that_lose_messages_or_letters_are_refused_at_start(nats, once, what, settings, says):
    shop = NatsShop(nats, **(settings if what == "messages" else {}))
    if what == "letters":
        shop.do(lambda jetstream: jetstream.add_stream(name=f"L{shop.stream}", subjects=[shop.dead], **settings))
    if what == "consumer":
        shop.consumer(**settings)
    loses = "of the dead letters .* loses" if what == "letters" else "loses messages"
    with pytest.raises(ValueError, match=f"{loses}.*{says}"):
        shop.worker(once, refuse).run()


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


def test_a_subject_with_wildcards_is_read_and_needs_a_dead_subject(nats, once):
    wild = NatsShop(nats, subjects=["wild.*.paid"])
    with pytest.raises(ValueError, match="without wildcards"):
        NatsWorker(once, "wild.*.paid", print, url=wild.url)
    with pytest.raises(ValueError, match="its own dead letters"):
        NatsWorker(once, "wild.*.paid", print, url=wild.url, dead="wild.eu.paid")
    wild.orders = "wild.eu.paid"
    wild.publish({"id": 3})
    seen = []
    worker = wild.worker(once, lambda order: seen.append(order["id"]), orders="wild.*.paid", dead=f"{wild.stream}.dead")
    with working(worker):
        until(lambda: seen == [3])


def test_a_stream_that_keeps_messages_for_another_time_than_the_ledger_its_keys_is_told(nats, once, shop, caplog):
    shop.worker(once, refuse, retention=None).run(until_empty=True)
    assert caplog.text == ""
    shop.worker(once, refuse, retention=86400).run(until_empty=True)
    assert "the ledger forgets their keys after 1 days" in caplog.text
    NatsShop(nats, max_age=3600).worker(once, refuse).run(until_empty=True)
    assert "not handled within 3600 s is lost" in caplog.text


def test_a_consumer_deleted_under_a_worker_ends_it(shop, once):
    async def delete(jetstream):
        try:
            return await jetstream.delete_consumer(shop.stream, "shop")
        except NotFoundError:
            return False

    threading.Thread(target=until, args=(lambda: shop.do(delete),)).start()
    with pytest.raises(BrokerError, match="was deleted"):
        NatsWorker(once, shop.orders, print, url=shop.url).run()

"""The worker for JetStream on a real server: outcomes, pauses, dead letters, and settings that lose messages."""

import threading
import time

import pytest
from nats.js.api import AckPolicy, DiscardPolicy, RetentionPolicy, StorageType
from nats.js.errors import NotFoundError

from observing import note_outcomes
from onceward.consumers.broker import BrokerError
from onceward.nats import NatsWorker
from onceward.nats.settings import takes
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


def test_two_groups_have_a_dead_letter_each_of_one_message(shop, once):
    shop.publish({"id": 7})
    for group in ("billing", "shipping"):
        shop.worker(once, refuse, name=group, max_attempts=1).run(until_empty=True)
    assert shop.letters() == 2


def test_a_stream_that_is_made_again_has_dead_letters_of_its_own(shop, once):
    for order in (7, 8):
        shop.publish({"id": order})
        shop.worker(once, refuse, max_attempts=1).run(until_empty=True)
        shop.do(lambda jetstream: jetstream.delete_stream(shop.stream))
        shop.make()
    assert shop.letters() == 2


def test_a_duplicate_of_a_dead_letter_that_is_gone_is_stored(shop, once):
    """The first try stores a letter, and its answer is lost. An operator deletes the letter before the second try."""
    shop.publish({"id": 7})
    worker = shop.worker(once, refuse, max_attempts=1)
    dead_letter, tries = worker._broker.dead_letter, []

    async def lose_the_first_answer(message, headers):
        await dead_letter(message, headers)
        if not tries:
            tries.append(message)
            await worker._broker._jetstream.purge_stream(worker._broker._letters)
            raise BrokerError("no answer")

    worker._broker.dead_letter = lose_the_first_answer
    with working(worker):
        until(lambda: tries and shop.pending() == 0)
    assert shop.letters() == 1


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"retention": RetentionPolicy.INTEREST}, "no consumer waits"),
        ({"max_age": 3600}, "max_age"),
        ({"max_msgs": 5}, "oldest"),
        ({"max_msgs_per_subject": 1, "discard": DiscardPolicy.NEW}, "oldest"),
        ({"storage": StorageType.MEMORY}, "in memory"),
        ({"no_ack": True}, "no_ack"),
    ],
)
def test_a_stream_that_loses_dead_letters_is_refused_at_start(shop, once, settings, what):
    shop.do(lambda jetstream: jetstream.add_stream(name=f"L{shop.stream}", subjects=[shop.dead], **settings))
    with pytest.raises(ValueError, match=f"loses the dead letters .*{what}.* give dead="):
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


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"storage": StorageType.MEMORY}, "in memory"),
        ({"retention": RetentionPolicy.WORK_QUEUE, "max_age": 60}, "max_age"),
        ({"retention": RetentionPolicy.WORK_QUEUE, "max_msgs": 5}, "oldest messages"),
    ],
)
def test_a_stream_that_loses_messages_is_refused_at_start(nats, once, settings, what):
    bad = NatsShop(nats, **settings)
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
    other = NatsShop(nats, subjects=["other.>"])
    other.orders = "other.one"
    other.consumer()
    with pytest.raises(ValueError, match=r"it reads other\.one"):
        NatsWorker(once, "other.two", print, url=other.url).run()


def test_a_stream_with_a_limit_is_only_warned_of(nats, once, caplog):
    limited = NatsShop(nats, max_age=3600)
    NatsWorker(once, limited.orders, print, url=limited.url).run(until_empty=True)
    assert "not handled within 3600 s is lost" in caplog.text


@pytest.mark.parametrize(
    ("stream", "retention", "is_told"), [({}, 86400, True), ({}, None, False), ({"max_age": 3600}, 86400, False)]
)
def test_a_stream_that_keeps_messages_longer_than_the_ledger_keeps_keys_is_told(
    nats, once, caplog, stream, retention, is_told
):
    shop = NatsShop(nats, **stream)
    shop.worker(once, refuse, retention=retention).run(until_empty=True)
    assert ("the ledger forgets their keys after 1 days" in caplog.text) is is_told


@pytest.mark.nightly
def test_a_missing_stream_and_a_server_that_is_away_are_told(nats, once):
    with pytest.raises(BrokerError, match="no stream takes nowhere"):
        NatsWorker(once, "nowhere", print, url=nats.url).run()
    with pytest.raises(BrokerError) as told:
        NatsWorker(once, "orders", print, url="nats://us:secret@127.0.0.1:1").run()
    assert "Connect call failed" in str(told.value)
    assert "secret" not in str(told.value)


def test_a_consumer_deleted_under_a_worker_ends_it(shop, once):
    async def delete(jetstream):
        try:
            return await jetstream.delete_consumer(shop.stream, "shop")
        except NotFoundError:
            return False

    threading.Thread(target=until, args=(lambda: shop.do(delete),)).start()
    with pytest.raises(BrokerError, match="was deleted"):
        NatsWorker(once, shop.orders, print, url=shop.url).run()


@each(
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

"""A message is kept through faults, kills and operators, its key is its own, and a redrive does what its record says."""

import asyncio
import itertools
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from faults.injected import Faults, at, fail_after, fail_before, late, twice
from onceward import Once, cloudevents, errors, kafka, rabbitmq
from onceward.consumers.delivery import Delivery
from onceward.consumers.keeping import Place
from onceward.consumers.redriving import planned
from onceward.consumers.retry_topics import KafkaMessage
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.kafka.broker import KafkaBroker, Topics
from onceward.rabbitmq.broker import message_delivery
from onceward.redis_streams.message import StreamEntry, entry_delivery
from onceward.stores.contract import KeepsMessage
from onceward.stores.memory import MemoryStore
from onceward.testing.bench import claim_of
from queues.kept import MESSAGE, TEXT, keeping, kept, parked, record_of
from tables import each


def keeps(ask):
    return any(write.status == PARKED and write.result is not None for write in ask.writes)


PLACES = {
    "in its key's record": (Place("shop:a"), lambda once: parked(once, "a", None)),
    "again": (Place("shop:a"), lambda once: parked(once, "a")),
    "in a record of its own": (Place("shop.malformed:m-1", "KeyMissing: no id"), lambda once: None),
    "in a record of its own that was unparked": (
        Place("shop.malformed:m-1", "KeyMissing: no id"),
        lambda once: once.acquire("m-1", name="shop.malformed").release(),
    ),
}


@each(("place", "before"), PLACES.values())
@each("fault", [fail_before(), fail_after(), late(1), late(2), twice()])
def test_a_fault_at_any_exchange_is_got_over(place, before, fault):
    for number in itertools.count(1):
        once = Once(Faults(MemoryStore(), at({})), name="shop")
        before(once)
        store = once.store
        asked = len(store.asked)
        store.plan = at({asked + number: fault})
        assert drive(keeping(store, place, TEXT), store) is None
        done, store.plan = len(store.asked) - asked, at({})
        assert kept(once, place.key).body == MESSAGE.body
        if done < number:
            assert done == 2, "one look and one write, without a fault"
            return


@each(("place", "before"), PLACES.values())
@each("fault", [fail_before(SystemExit), fail_after(SystemExit), late(1, SystemExit)])
def test_killed_at_any_exchange_the_message_is_kept_when_it_comes_again(place, before, fault):
    for number in itertools.count(1):
        once = Once(Faults(MemoryStore(), at({})), name="shop")
        before(once)
        store = once.store
        store.plan = at({len(store.asked) + number: fault})
        try:
            drive(keeping(store, place, TEXT), store)
        except SystemExit:
            pass  # the message is not deleted, for nobody has seen that it is kept
        else:
            assert number == 3
            return
        store.plan = at({})
        assert drive(keeping(store, place, TEXT), store) is None
        assert kept(once, place.key).body == MESSAGE.body


def test_a_key_unparked_in_between_lets_its_message_stay_in_the_queue():
    once = Once(Faults(MemoryStore(), at({})), name="shop")
    key = parked(once, "a", None)
    store = once.store
    done = []

    def plan(ask):
        if ask.verb == "swap" and keeps(ask) and not done:
            done.append(ask)
            Once(store.store).ledger.unpark(key)

    store.plan = plan
    assert drive(keeping(store, Place(key), TEXT), store) == "its key is not parked any more"
    assert (record_of(once, key).status, record_of(once, key).result) == (RELEASED, None)


def test_a_message_kept_while_the_key_is_being_cleared_is_not_lost():
    once = Once(Faults(MemoryStore(), at({})), name="shop")
    key = parked(once, "a", None)
    store = once.store

    def plan(ask):
        if ask.verb == "delete" and not store.store.records[key].result:
            drive(keeping(store.store, Place(key), TEXT), store.store)

    store.plan = plan
    with pytest.raises(KeepsMessage):
        once.ledger.clear(key)
    assert kept(once, key).body == MESSAGE.body
    assert once.ledger.clear(key, message=True).result == TEXT


def held(status, attempts=3, lease_until=0.0):
    made = claim_of("k", "o", status=status, attempts=attempts, error="e", keep=None).at(1e-6)
    return made._replace(beat=1, lease_until=lease_until)


@each(
    ("record", "completed", "step"),
    [
        (None, "keep", "move"),
        (held(PARKED), "keep", "unpark"),
        (held(RELEASED), "keep", "reset"),
        (held(RELEASED, attempts=0), "keep", "move"),
        (held(IN_PROGRESS, lease_until=50.0), "drop", "move"),
        (held(IN_PROGRESS, lease_until=101.0), "drop", "wait"),
        (held(COMPLETED), "keep", "keep"),
        (held(COMPLETED), "drop", "drop"),
        (held(COMPLETED)._replace(expires_at=99.0), "keep", "move"),
        (held("WAITING"), "keep", "wait"),
        (held(RELEASED)._replace(needs="later"), "keep", "wait"),
    ],
)
def test_what_is_done_about_a_message(record, completed, step):
    assert planned(record, 100.0, completed, "keep").step == step


def test_attempts_of_a_lapsed_key_count_from_0_only_if_a_person_says_so():
    assert planned(held(IN_PROGRESS), 100.0, "keep", "rerun").step == "reset"


def test_a_key_that_is_parked_in_a_step_is_retried_from_there_and_a_rerun_leaves_it():
    record = held(PARKED)._replace(steps='[{"name":"mail","attempt":3,"done":false}]')
    plan = planned(record, 100.0, "keep", "rerun")
    assert (plan.step, "its step mail may be made" in plan.reason) == ("wait", True)


@each("redrive", [kafka.KafkaRedrive, rabbitmq.RabbitRedrive])
@each("options", [{"limit": 0}, {"limit": -1}, {"completed": "rerun"}, {"in_doubt": "drop"}])
def test_wrong_options_are_refused(redrive, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        redrive(Once("memory:"), "orders", **options)


def test_a_letter_whose_record_is_damaged_stays_and_the_others_go_on(tmp_path):
    with closing(Once(f"sqlite:///{tmp_path}/ledger.db", name="shop")) as once:
        once.acquire("bad").park("why")
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as damaging:
            damaging.execute("UPDATE onceward SET expires_at = 'soon'")
        for redrive in (kafka.KafkaRedrive, rabbitmq.RabbitRedrive):
            letter = redrive(once, "orders").judged("place", "shop:bad", "parked")
            assert (letter.outcome, "shop:bad" in letter.reason) == ("refused", True)


NUMBERS = [number.to_bytes(8, "big") for number in (200, 201)]


def from_kafka(key):
    place = {"topic": "t", "partition": 0, "offset": 1, "timestamp": 1}
    record = SimpleNamespace(**place, value=b"{}", headers=[("Idempotency-Key", key)])
    return KafkaMessage(record, ours=False).delivery(grouped=False)


def from_rabbitmq(key):
    message = SimpleNamespace(headers={"Idempotency-Key": key}, body=b"{}", message_id=None)
    return message_delivery(message, "q")


def from_redis(key):
    return entry_delivery(StreamEntry("1-0", {b"Idempotency-Key": key, b"order": key}, 1), "s")


def test_two_keys_of_bytes_are_two_keys():
    for source in (from_kafka, from_rabbitmq, from_redis):
        assert len({source(key).key for key in NUMBERS}) == 2
    assert len({from_redis(key).data["order"] for key in NUMBERS}) == 2


def delivery(headers=(), data=None):
    made = Delivery("queue", None)
    made.id, made.header, made.data = "m", dict(headers).get, data
    return made


def test_binary_http_and_nats_encode_their_headers_and_have_the_key_of_the_structured_form():
    structured = delivery(data={"specversion": "1.0", "source": "/café", "id": "7 %"})
    encoded = delivery({"ce-source": "/caf%C3%A9", "ce-id": "7%20%25"})
    plain = [delivery({f"{begin}source": "/café", f"{begin}id": "7 %"}) for begin in ("ce_", "cloudEvents:")]
    assert {cloudevents.cloud_event_key(each) for each in (structured, encoded, *plain)} == {"/café 7 %"}


@each("space", [" ", "\t", "\u00a0"])
def test_white_space_in_a_source_is_refused_because_another_event_could_have_its_key(space):
    source = f"/shop{space}eu"
    for event in (
        delivery({"ce_source": source, "ce_id": "7"}),
        delivery({"ce-source": "/shop%20eu", "ce-id": "7"}),
        delivery(data={"specversion": "1.0", "source": source, "id": "7"}),
    ):
        with pytest.raises(errors.KeyMissing, match="white space"):
            cloudevents.cloud_event_key(event)
    assert cloudevents.cloud_event_key(delivery({"ce_source": "/shop", "ce_id": "eu 7"})) == "/shop eu 7"


PLACE = TopicPartition("t.onceward-retry", 0)


class Consumer:
    """Gives one record of an offset, and then none for ever."""

    def __init__(self, offset):
        record = SimpleNamespace(topic=PLACE.topic, partition=0, offset=offset, timestamp=1, headers=(), value=b"1")
        self._found = [{PLACE: [record]}]

    async def getmany(self, **_):
        if not self._found:
            await asyncio.Event().wait()
        return self._found.pop()

    def assignment(self):
        return {PLACE}

    async def committed(self, place):
        return 0

    def paused(self):
        return set()


@pytest.mark.parametrize(("rebalances", "committable"), [(False, 500), (True, None)])
async def test_records_read_before_a_rebalance_do_not_hide_those_that_are_read_again(rebalances, committable):
    asked = asyncio.Event()

    async def ask(*_):
        if rebalances:
            await reader.on_partitions_revoked({PLACE})
            await reader.on_partitions_assigned({PLACE})  # the same one, again from its committed offset
        asked.set()

    reader = KafkaBroker(Topics("t"), servers=None, order=False, settings={})
    reader._consumer, reader._clock.ask = Consumer(500), ask
    await reader.on_partitions_assigned({PLACE})
    reading = asyncio.create_task(reader._read())
    await asked.wait()
    await asyncio.sleep(0)
    reading.cancel()
    told = reader._partitions[PLACE].committable
    assert told == committable

"""FastStream's handlers under its own test brokers: what is refused at the start, and what a handler keeps."""

import asyncio
import uuid
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
from fast_depends.msgspec import MsgSpecSerializer
from fast_depends.pydantic import PydanticSerializer
from faststream import AckPolicy, Context, Depends, Header, Response
from faststream.exceptions import SetupError
from faststream.kafka import KafkaBroker, TestKafkaBroker
from faststream.nats import NatsBroker, PullSub, TestNatsBroker
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue, TestRabbitBroker
from faststream.redis import RedisBroker, StreamSub, TestRedisBroker
from nats.js import api
from pydantic import BaseModel, ValidationError

from faults.injected import Faults, fail_before, when
from fixtures import closing_fixture
from onceward import Claim, KeyMissing, Mismatch, Once, StepNotRecorded, StoreError, current
from onceward.consumers.delivery import Backoff, MalformedRecord
from onceward.faststream import exactly
from onceward.faststream.on_kafka import KafkaSettlement
from onceward.faststream.settlement import Settling
from printed.pages import run
from tables import each

NACK = AckPolicy.NACK_ON_ERROR
SAFE = {"stream": "ORDERS", "durable": "shop", "pull_sub": PullSub(), "ack_policy": NACK}
GROUP = {"group": "shop", "consumer": "one"}
KAFKA = {"group_id": "shop", "auto_offset_reset": "earliest", "ack_policy": NACK}


class Order(BaseModel):
    id: str
    cents: int = 100


@dataclass
class Receipt:
    order: str
    run: int


once = closing_fixture(lambda: Once("memory:"))


def charging(once, **options):
    """Return a guarded handler under a name of its own."""

    @exactly(once, key="order.id", name=uuid.uuid4().hex, **options)
    async def charge(order: Order) -> None: ...

    return charge


async def test_a_duplicate_gets_the_recorded_reply_with_its_dependencies(once):
    broker, runs, taxes = NatsBroker(), [], iter((7, 8))

    @broker.subscriber("orders", **SAFE)
    @exactly(once, key="order.id", name="charge", fingerprint=True)
    async def charge(
        order: Order,
        tax: Annotated[int, Depends(lambda: next(taxes))],
        claim: Claim,
        subject: Annotated[str, Context("message.raw_message.subject")],
    ) -> Receipt:
        runs.append((tax, subject, claim.attempt))
        return Receipt(order.id, len(runs))

    async with TestNatsBroker(broker) as fake:
        told = [await (await fake.request(Order(id="1"), "orders")).decode() for _ in range(2)]
    assert told == [{"order": "1", "run": 1}] * 2
    assert runs == [(7, "orders", 1)]


def test_a_final_exception_is_an_outcome_that_publishes_nothing(once):
    broker, came = NatsBroker(), []

    class Declined(Exception):
        key = "card-7"  # of its own, and none of the ledger

    @broker.subscriber("orders", **SAFE)
    @broker.publisher("paid")
    @exactly(once, key="order.id", name="charge", final=(Declined,))
    async def charge(order: Order) -> None:
        raise Declined

    @broker.subscriber("paid")
    async def paid(body):
        came.append(body)

    started(broker, TestNatsBroker, Order(id="1"), Order(id="1"))
    assert came == []


def test_a_step_that_was_not_recorded_is_behind_no_final_exception(once):
    broker, broken = NatsBroker(), []
    once = Once(Faults(once.store, when(lambda ask: bool(broken), fail_before(StoreError))))

    async def pay(body: dict) -> None:
        try:
            await current().step_async("pay", broken.append, 1)
        except StepNotRecorded as error:
            raise LookupError from error  # an outcome, for which FastStream would drop the message

    broker.subscriber("orders", **SAFE)(exactly(once, key="body.id", name="charge", final=(LookupError,))(pay))
    with pytest.raises(StepNotRecorded):
        started(broker, TestNatsBroker, {"id": "1"})


def started(broker, testing, *orders):
    """Start the broker, and publish these."""

    async def main():
        async with testing(broker) as fake:
            for order in orders:
                await fake.publish(order, "orders")

    asyncio.run(main())


def refused(broker, testing, fix):
    with pytest.raises(SetupError, match=fix):
        started(broker, testing)


ONE_AT_A_TIME = {"config": api.ConsumerConfig(max_ack_pending=1)}


@each(
    ("subject", "options", "guard", "fix"),
    [
        ("orders", {"ack_policy": AckPolicy.REJECT_ON_ERROR}, {}, "ack_policy=AckPolicy.NACK_ON_ERROR"),
        ("orders", {"ack_policy": AckPolicy.ACK_FIRST, "pull_sub": False}, {}, "ack_policy=AckPolicy.NACK_ON_ERROR"),
        ("orders", {"durable": None}, {}, "give durable="),
        ("orders", {"config": api.ConsumerConfig(max_deliver=3)}, {}, "max_attempts="),
        ("orders", {"config": api.ConsumerConfig(ack_policy=api.AckPolicy.NONE)}, {}, "ack_policy=explicit"),
        ("orders", None, {}, "give stream="),
        ("orders.*", {}, {}, "give @exactly"),
        ("orders", {}, {"order": True}, "max_ack_pending=1"),
        ("orders", ONE_AT_A_TIME, {"order": True}, None),
    ],
)
@pytest.mark.filterwarnings("ignore:The JetStream Push consumer")
def test_a_jetstream_consumer_that_loses_messages_is_refused(once, subject, options, guard, fix):
    broker = NatsBroker()
    broker.subscriber(subject, **({} if options is None else SAFE | options))(charging(once, **guard))
    if fix:
        refused(broker, TestNatsBroker, fix)
    else:
        started(broker, TestNatsBroker)


@each(
    ("options", "fix"),
    [
        ({"channel": "orders"}, "give stream="),
        ({"stream": StreamSub("orders", no_ack=True, **GROUP)}, "give group="),
        ({"stream": StreamSub("orders")}, "give group="),
        ({"stream": StreamSub("orders", **GROUP)}, "min_idle_time=60_000"),
        ({"stream": StreamSub("orders", min_idle_time=100, **GROUP), "ack_policy": AckPolicy.ACK}, "NACK_ON_ERROR"),
    ],
)
def test_a_redis_subscriber_that_loses_messages_is_refused(once, options, fix):
    broker = RedisBroker()
    broker.subscriber(**options)(charging(once))
    refused(broker, TestRedisBroker, fix)


@each(
    ("options", "broker", "fix"),
    [
        ({"ack_policy": AckPolicy.ACK_FIRST}, {}, "ack_policy=AckPolicy.NACK_ON_ERROR"),
        ({"group_id": None}, {}, "give group_id="),
        ({"auto_offset_reset": "latest"}, {}, "auto_offset_reset='earliest'"),
        ({"topics": ["orders"]}, {}, "orders.onceward-retry, where busy and failed records wait"),
        ({}, {"acks": 1}, "acks='all'"),
    ],
)
def test_a_kafka_subscriber_that_loses_records_is_refused(once, options, broker, fix):
    kafka = KafkaBroker(**{"acks": "all"} | broker)
    given = KAFKA | options
    topics = given.pop("topics", ["orders", "orders.onceward-retry"])
    kafka.subscriber(*topics, **given)(charging(once))
    with pytest.raises(SetupError, match=fix):
        started(kafka, TestKafkaBroker)


async def test_a_partition_waits_at_the_first_of_its_records_that_wait(once):
    subscriber = KafkaBroker().subscriber("orders", batch=True, **KAFKA)
    settlement, places = KafkaSettlement(subscriber, Settling(Backoff(1, 1), None, False, once.policy)), []
    consumer = SimpleNamespace(seek=lambda _, offset: places.append(offset), pause=print, resume=print)
    of = {"topic": "orders", "partition": 0, "timestamp": 0, "key": None, "value": b"{}", "headers": ()}
    raw = tuple(SimpleNamespace(**of, offset=number) for number in range(3))
    deliveries = settlement.deliveries(SimpleNamespace(raw_message=raw, consumer=consumer))
    for number in (1, 0, 1):
        await settlement.wait(deliveries[number], 5.0, 1)
    assert (places, await settlement.ready(deliveries[2])) == ([1, 0], False)


UNCONFIRMED = {"default_channel": Channel(publisher_confirms=False)}


@each(
    ("options", "queue", "broker", "fix"),
    [
        ({"ack_policy": AckPolicy.REJECT_ON_ERROR}, {}, {}, "ack_policy=AckPolicy.NACK_ON_ERROR"),
        ({}, {"durable": False}, {}, "durable=True"),
        ({}, {"exclusive": True}, {}, "without that"),
        ({}, {"auto_delete": True}, {}, "without that"),
        ({}, {"arguments": {"x-max-length": 10}}, {}, "x-overflow to reject-publish"),
        ({}, {"arguments": {"x-message-ttl": 1000}}, {}, "give it a dead-letter exchange"),
        ({}, {"queue_type": QueueType.STREAM}, {}, "use a quorum queue"),
        ({}, {}, UNCONFIRMED, "publisher_confirms"),
        ({}, {"arguments": {"x-delivery-limit": 0}}, {}, "give it a dead-letter exchange"),
        ({}, {"arguments": {"x-delivery-limit": -1}}, {}, "leave order=True out"),
    ],
)
def test_a_queue_that_loses_messages_is_refused(once, options, queue, broker, fix):
    rabbit = RabbitBroker(**broker)
    handler = charging(once, order="order=True" in fix)
    rabbit.subscriber(RabbitQueue("orders", **queue), **({"ack_policy": NACK} | options))(handler)
    refused(rabbit, TestRabbitBroker, fix)


REDIS = {"stream": StreamSub("orders", claim_min_idle_time=100, **GROUP), "ack_policy": NACK}
KINDS = {
    "nats": (NatsBroker, TestNatsBroker, ["orders"], SAFE, "subject"),
    "kafka": (lambda: KafkaBroker(acks="all"), TestKafkaBroker, ["orders", "orders.onceward-retry"], KAFKA, "topic"),
    "rabbitmq": (RabbitBroker, TestRabbitBroker, ["orders"], {"ack_policy": NACK}, "queue"),
    "redis": (RedisBroker, TestRedisBroker, [], REDIS, "stream"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_test_broker_knows_replays_and_errors(once, kind):
    make, testing, names, options, where = KINDS[kind]
    broker, runs = make(), []

    @broker.subscriber(*names, **options)
    @exactly(once, key="order.id", name="charge", fingerprint="order.cents")
    async def charge(order: Order) -> None:
        runs.append(order.id)
        if order.id == "poison":
            raise ConnectionError("the bank is away")

    async with testing(broker, connect_only=False) as fake:
        for order, error in (
            *[(Order(id="1"), None)] * 2,
            (Order(id="1", cents=5), Mismatch),
            (Order(id=""), KeyMissing),
            (Order(id="poison"), ConnectionError),
        ):
            with pytest.raises(error) if error else nullcontext():
                await fake.publish(order, **{where: "orders"})
    assert runs == ["1", "poison"]


async def test_a_payload_that_is_not_quite_json_is_refused_and_a_byte_order_mark_is_skipped(once, caplog):
    broker, runs = NatsBroker(), []

    def charge(order: dict) -> None:
        runs.append(order["id"])

    broker.subscriber("orders", **SAFE)(exactly(once, key="order.id", name="charge")(charge))
    async with TestNatsBroker(broker, connect_only=False) as fake:
        told = {"content-type": "application/json"}
        await fake.publish(b'\xef\xbb\xbf{"id": 1}', "orders", headers=told)
        for body in (b'{"id": 2, "id": 3}', b'{"id": 2, "n": NaN}', b"[" * 100_000, b'{"n": %s}' % (b"9" * 5000)):
            with pytest.raises(MalformedRecord):
                await fake.publish(body, "orders", headers=told)
    assert runs == [1]
    assert "the payload is not JSON: the name 'id' is there twice" in caplog.text
    assert "the payload is not JSON: invalid character (byte 15)" in caplog.text
    assert "not JSON: it is nested too deep" in caplog.text


@each(
    ("key", "cents", "answer", "error", "becomes"),
    [
        ("order.id", 5, "<html>", ValidationError, "is failed, and comes again"),
        (lambda order: int(order.id), 5, '{"id": ""}', MalformedRecord, "is malformed, and"),
        ("order.id", "4111-x", '{"id": ""}', ValidationError, "is malformed, and"),
    ],
)
def test_a_message_is_malformed_by_its_own_fault_and_is_not_logged(once, caplog, key, cents, answer, error, becomes):
    async def charge(
        order: Order, rates: Annotated[object, Depends(lambda: Order.model_validate_json(answer))]
    ) -> None: ...

    caplog.clear()
    broker = NatsBroker(logger=None)
    broker.subscriber("orders", **SAFE)(exactly(once, key=key, name=uuid.uuid4().hex)(charge))
    with pytest.raises(error):
        started(broker, TestNatsBroker, {"id": "4111-x", "cents": cents})
    assert becomes in caplog.text
    assert "4111" not in caplog.text


def gives_no_order() -> Order:
    return {}


def needs_rate(rate: Annotated[float, Depends(lambda: None)]) -> None: ...
def of_tenant(part: Annotated[str, Header("tenant")]) -> str: ...
def of_id(id: str) -> int: ...
def of_rate(rate: float) -> float: ...


@each("serializer", [PydanticSerializer(use_fastdepends_errors=False), PydanticSerializer(), MsgSpecSerializer()])
@each(
    ("part", "body", "becomes"),
    [
        (Annotated[float, Depends(lambda: None)], {"id": "1"}, "is failed, and comes again"),
        (Annotated[object, Depends(gives_no_order, cast_result=True)], {"id": "1"}, "is failed, and comes again"),
        (Annotated[object, Depends(needs_rate)], {"id": "1"}, "is failed, and comes again"),
        (Annotated[object, Context("settings")], {"id": "1"}, "is failed, and comes again"),
        (Annotated[float, Depends(lambda: 1.0)], {"id": [1]}, "is malformed, and"),
        (Annotated[str, Header("tenant")], {"id": "1"}, "is malformed, and"),
        (Annotated[str, Depends(of_tenant)], {"id": "1"}, "is malformed, and"),
        (Annotated[float, Depends(lambda: 1.0)], {"id": "1", "x": "2"}, "is malformed, and"),
        (Annotated[int, Depends(of_id)], {"id": "1", "order": {"id": "1"}, "part": "x"}, "is malformed, and"),
        (Annotated[int, Depends(of_id)], {"id": "1", "order": {"id": "1"}}, "is failed, and comes again"),
        (Annotated[float, Depends(of_rate)], {"id": "1"}, "is failed, and comes again"),  # what another dependency gave
    ],
)
def test_a_message_is_malformed_only_if_a_part_of_the_message_does_not_fit(
    once, caplog, serializer, part, body, becomes
):
    async def charge(
        order: dict[Literal["id"], str], rate: Annotated[object, Depends(lambda: None)], part: part
    ) -> None: ...

    caplog.clear()
    broker = NatsBroker(logger=None, serializer=serializer)
    broker.subscriber("orders", **SAFE)(exactly(once, key="order.id", name=uuid.uuid4().hex)(charge))
    with pytest.raises(ValueError):
        started(broker, TestNatsBroker, body)
    assert becomes in caplog.text


def test_a_batch_takes_one_message_and_publishes_nothing(once):
    @exactly(once, key="order.id", name="other")
    async def charge(order: Order, tax: Annotated[int, Depends(lambda: 7)]) -> None: ...

    batched = SAFE | {"pull_sub": PullSub(batch=True)}
    broker, other = NatsBroker(), NatsBroker()
    broker.subscriber("orders", **batched)(broker.publisher("paid")(charging(once)))
    refused(broker, TestNatsBroker, "results of a batch are not published")
    other.subscriber("orders", **batched)(charge)
    with pytest.raises(TypeError, match="takes 'tax'"):
        started(other, TestNatsBroker)


def test_wrong_options_are_refused_when_decorating(once):
    def charge(order: Order) -> Response: ...

    for make, error, says in (
        (lambda: exactly(once, key="order.id", on_busy="skip"), ValueError, "on_busy"),
        (lambda: exactly(once, key="payment.id", name="a")(lambda order: order), ValueError, "names no parameter"),
        (lambda: exactly(once, key="order.id")(charging(once)), TypeError, "right above the function"),
        (lambda: exactly(once, key="order.id", name="b")(charge), TypeError, "results of type .* cannot be recorded"),
    ):
        with pytest.raises(error, match=says):
            make()
    guarded = exactly(once, key="order.id", name="c")(lambda order: order.cents)
    assert guarded(Order(id="1", cents=5)) == guarded(Order(id="1", cents=6)) == 5  # without a broker it runs once


async def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("docs/reference/faststream.md", {})
    async with TestNatsBroker(names["broker"]) as fake:
        for _ in range(2):
            reply = await fake.request({"id": "1", "cents": 5}, "orders")
    assert await reply.decode() == "charged 5 cents"
    async with TestRedisBroker(names["redis_broker"]):
        pass
    names["once"].close()

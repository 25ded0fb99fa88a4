"""FastStream over NATS JetStream: each outcome becomes what JetStream needs."""

import asyncio
import json
import uuid

import nats as client
import pytest
from faststream.exceptions import SetupError
from faststream.nats import JStream, NatsBroker, PullSub
from nats.js.api import ConsumerConfig
from stations import NACK, Order, Receipt, charging, handled, is_poison, numbered, until

from onceward.core.record import PARKED
from onceward.faststream import exactly


class Shop:
    """A stream of its own on the run's server, and a broker of FastStream."""

    def __init__(self, server):
        self.name = f"s{uuid.uuid4().hex[:8]}"
        self.url = server.url
        self.broker = NatsBroker(server.url, logger=None)
        self.stream = JStream(self.name.upper(), subjects=[f"{self.name}.orders", f"{self.name}.paid"])
        self.orders, self.paid = f"{self.name}.orders", f"{self.name}.paid"
        self.dead = f"{self.orders}.onceward-dead"

    def subscriber(self, subject=None, **options):
        subject = subject or self.orders
        given = {
            "durable": subject.replace(".", "-"),
            "pull_sub": PullSub(timeout=0.5),
            "ack_policy": NACK,
            "config": ConsumerConfig(
                ack_wait=10
            ),  # a busy machine loses one message of three that is sent to a pull as it ends
        } | options
        return self.broker.subscriber(subject, stream=self.stream, **given)

    async def __aenter__(self):
        await self.broker.start()
        self.connection = await client.connect(self.url)
        self.jetstream = self.connection.jetstream()
        return self

    async def __aexit__(self, *_):
        await self.broker.stop()
        await self.connection.close()

    async def publish(self, *orders, subject=None):
        for order in orders:
            body = order if isinstance(order, bytes) else order.model_dump_json().encode()
            await self.jetstream.publish(subject or self.orders, body, headers={"content-type": "application/json"})

    async def info(self, subject=None):
        return await self.jetstream.consumer_info(self.stream.name, (subject or self.orders).replace(".", "-"))

    async def delivered(self):
        return (await self.info()).delivered.consumer_seq

    async def settled(self):
        """Return whether JetStream holds nothing back for the orders' consumer."""
        info = await self.info()
        return info.num_pending == 0 and info.num_ack_pending == 0

    async def letters(self, count, subject=None):
        """Return this many dead letters."""

        async def came():
            try:
                name = await self.jetstream.find_stream_name_by_subject(subject or self.dead)
            except client.js.errors.NotFoundError:
                return None
            return name if (await self.jetstream.stream_info(name)).state.messages >= count else None

        dead = await until(came)
        return [await self.jetstream.get_msg(dead, number) for number in range(1, count + 1)]


@pytest.fixture
def shop(nats):
    return Shop(nats)


def test_a_duplicate_gets_the_recorded_reply_under_the_same_key(shop, once):
    runs, came = [], []

    @shop.subscriber()
    @shop.broker.publisher(shop.paid, stream=shop.stream)
    @exactly(once, key="order.id", name="charge")
    async def charge(order: Order) -> Receipt:
        runs.append(order.id)
        return Receipt(order=order.id, run=len(runs))

    async def main():
        async with shop:
            await shop.publish(Order(id="1"), Order(id="1"), Order(id="2"))
            await until(shop.settled)
            info = await shop.jetstream.stream_info(shop.stream.name)
            for number in range(1, info.state.messages + 1):
                message = await shop.jetstream.get_msg(shop.stream.name, number)
                if message.subject == shop.paid:
                    came.append((json.loads(message.data), message.headers["Idempotency-Key"]))

    asyncio.run(main())
    assert sorted(runs) == ["1", "2"]
    # The stream itself has dropped the second reply of order 1, which had the same Nats-Msg-Id.
    assert sorted(body["order"] for body, _ in came) == ["1", "2"]
    assert len({key for _, key in came}) == 2


def test_a_busy_message_comes_again_without_a_hot_loop(shop, once):
    runs, held = charging(shop, once), once.acquire("1", name="charge", lease=600)

    async def main():
        async with shop:
            await shop.publish(Order(id="1"))
            await until(shop.delivered)
            await asyncio.sleep(1)  # a hot loop would be hundreds of deliveries
            return await shop.delivered()

    assert asyncio.run(main()) < 5  # JetStream waits for the rest of the other worker's lease
    held.release()
    assert runs == []


def test_what_cannot_be_handled_goes_to_the_dead_letters(shop, once):
    options = {"fingerprint": "order.cents", "max_attempts": 1, "backoff": (0.1, 0.1)}
    charging(shop, once, is_poison, **options)

    async def main():
        async with shop:
            await shop.publish(Order(id="1"), b"no JSON at all")
            await until(shop.settled)
            await shop.publish(Order(id="1", cents=200), Order(id="poison"))
            letters = await shop.letters(3)
            await until(shop.settled)
            return letters

    letters = asyncio.run(main())
    told = {one.headers["onceward-status"]: one for one in letters}
    assert told.keys() == {"malformed", "mismatch", "parked"}
    assert told["malformed"].data == b"no JSON at all"
    assert "the bank is away" in told["parked"].headers["onceward-reason"]
    assert told["parked"].headers["onceward-key"] == "charge:poison"
    assert told["parked"].headers["onceward-from"] == shop.orders
    assert told["parked"].headers["onceward-receives"] == "2"
    assert told["parked"].subject == shop.dead


def test_a_batch_is_claimed_together_and_settled_one_by_one(shop, once):
    queue = {"pull_sub": PullSub(batch_size=50, timeout=1, batch=True)}
    runs = charging(shop, once, is_poison, queue, max_attempts=2, backoff=(0.1, 0.1))

    async def main():
        async with shop:
            await shop.publish(*numbered(20), b"no JSON at all", Order(id="poison"), Order(id="3"))
            letters = await shop.letters(2)
            await until(shop.settled)
            return letters

    letters = asyncio.run(main())
    assert sorted(runs) == sorted([*(f"{n}" for n in range(20)), "poison", "poison"])
    assert {one.headers["onceward-status"] for one in letters} == {"malformed", "parked"}


def test_each_publisher_of_one_stream_gets_a_key_of_its_own(shop, once):
    """A stream drops a second message with the same Nats-Msg-Id, whatever its subject is."""

    @shop.subscriber()
    @shop.broker.publisher(shop.paid, stream=shop.stream)
    @shop.broker.publisher(f"{shop.name}.mails", stream=shop.stream)
    @exactly(once, key="order.id", name="charge")
    async def charge(order: Order) -> Receipt:
        return Receipt(order=order.id, run=1)

    async def main():
        async with shop:
            await shop.publish(Order(id="1"), Order(id="1"))
            await until(shop.settled)
            info = await shop.jetstream.stream_info(shop.stream.name)
            stored = [
                await shop.jetstream.get_msg(shop.stream.name, number) for number in range(1, info.state.messages + 1)
            ]
            return [(one.subject, one.headers["Idempotency-Key"]) for one in stored if one.subject != shop.orders]

    came = asyncio.run(main())
    assert sorted(subject for subject, _ in came) == [f"{shop.name}.mails", shop.paid]
    assert len({key for _, key in came}) == 2


def test_a_message_whose_result_is_not_published_comes_again_later(shop, once):
    runs = []

    @shop.subscriber()
    @shop.broker.publisher(f"nobody-{shop.name}", stream=JStream(f"NOBODY-{shop.name}", declare=False))
    @exactly(once, key="order.id", name="charge", backoff=(600, 600))
    def charge(order: Order) -> Receipt:
        runs.append(order.id)
        return Receipt(order=order.id, run=len(runs))

    async def main():
        async with shop:
            await shop.publish(Order(id="1"))
            await until(lambda: runs)
            await asyncio.sleep(1)  # a hot loop would be hundreds of deliveries
            return await shop.delivered()

    assert asyncio.run(main()) < 5
    assert runs == ["1"]


def test_an_ordered_consumer_is_held_back_by_a_failed_message(shop, once):
    queue = {"config": ConsumerConfig(max_ack_pending=1, ack_wait=10)}
    runs = charging(shop, once, lambda runs: len(runs) < 3, queue, order=True, backoff=(0.2, 0.2))
    handled(shop, *numbered(5), end=shop.settled)
    assert runs == ["0", "0", "0", "1", "2", "3", "4"]


def test_a_stream_that_forgets_dead_letters_is_refused_at_start(shop, once):
    """The usual subjects of a stream, ``orders.>``, take the dead letters, too."""
    shop.stream = JStream(shop.name.upper(), subjects=[f"{shop.name}.>"], retention="interest")

    charging(shop, once)

    async def main():
        try:
            await shop.broker.start()
        finally:
            await shop.broker.stop()

    with pytest.raises(SetupError, match=r"loses the dead letters .* no consumer waits"):
        asyncio.run(main())


def test_a_message_without_room_for_a_letters_headers_stays(shop, once):
    runs, text = [], "x" * (2**20 - 150)  # the server takes a megabyte, with its headers

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", max_attempts=1, backoff=(0.1, 600))
    async def charge(order: dict) -> None:
        runs.append(order["id"])
        if order["id"] == 1:
            raise ConnectionError("no bank")

    async def main():
        async with shop:
            await shop.publish(json.dumps({"id": 1, "text": text}).encode(), b'{"id": 2}')
            await until(stays)
            return (await shop.info()).num_pending

    async def stays():
        info = await shop.info()
        return 2 in runs and info.num_redelivered == 1 and once.ledger.show("charge:1")[0].status == PARKED

    assert asyncio.run(main()) == 0
    assert sorted(runs) == [1, 2]

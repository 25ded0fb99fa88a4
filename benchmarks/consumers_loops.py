"""onceward's SQS worker and the loops that its peers have for the same, each draining a queue of prepared messages.

The handlers do nothing. Each loop keeps its clients and connections from one run to the next, and says of each message that
it is done when its delete has returned.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any, NamedTuple
from urllib.parse import quote

import aioboto3
import boto3
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function
from botocore.config import Config
from idemkit import ConsumerAction, DynamoBackend, IdempotentConsumer
from idemkit.contrib.sqs import run_forever, sqs_consumer

from dynamodb_peers import CONNECTIONS, REGION, Context, boto3_client
from measure import Cost
from onceward import Once
from onceward.aws import SqsWorker
from onceward.aws.sqs.queue import Queue, QueueError

WAIT = 1  # seconds of a long poll: how long a loop takes to find out that it has nothing to do any more
VISIBILITY = 30  # seconds
BATCH = 10  # what a receive brings at most
BARE_THREADS = 5
Message = dict[str, Any]
Loop = Callable[["Countdown"], None]  # drains the queue, and returns after the countdown has ended


class Place(NamedTuple):
    """Where a loop works.

    Attributes:
        ledger: the URL of the ledger's server.
        sqs: the URL of the queue's server.
        queue: the URL of the queue.
    """

    ledger: str
    sqs: str
    queue: str


class Countdown:
    """Counts the messages that are done; its end is when the last one is."""

    def __init__(self, count: int) -> None:
        self._left = self._count = count
        self._lock = threading.Lock()
        self._cost: Cost | None = None
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def done(self, count: int) -> None:
        """Say that so many messages have been deleted."""
        with self._lock:
            self._left -= count
            if self._left == 0 and count:
                cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
                self._cost = Cost(cpu / self._count * 1e6, wall / self._count * 1e6)

    @property
    def over(self) -> bool:
        """Whether all are deleted."""
        return self._cost is not None

    @property
    def cost(self) -> Cost:
        """What each message has cost."""
        assert self._cost is not None, f"{self._left} messages were not deleted"
        return self._cost


def handle(order: Message) -> dict[str, bool]:
    """Do the work of one message."""
    return {"ok": not order["bad"]}


async def handle_async(order: Message) -> dict[str, bool]:
    return handle(order)


def _config() -> Config:
    return Config(max_pool_connections=CONNECTIONS)


# --- onceward -------------------------------------------------------------------------------------------------------


class CountedQueue(Queue):
    """A queue that counts what is deleted."""

    countdown: Countdown

    async def delete_many_async(self, receipts: Sequence[str]) -> list[QueueError | None]:
        """As :meth:`Queue.delete_many_async`."""
        errors = await super().delete_many_async(receipts)
        self.countdown.done(errors.count(None))
        return errors


def worker(handler: Callable[..., object], place: Place, concurrency: int, stack: ExitStack) -> Loop:
    """Drain it with onceward's worker."""
    once = Once(f"dynamodb://onceward?region={REGION}&endpoint={quote(place.ledger)}")
    queue = CountedQueue(place.queue, region=REGION, endpoint=place.sqs)
    stack.callback(queue.close)
    runner = stack.enter_context(asyncio.Runner())

    def loop(countdown: Countdown) -> None:
        queue.countdown = countdown
        made = SqsWorker(once, queue, handler, concurrency=concurrency, wait=WAIT)
        runner.run(made.run_async(until_empty=True))

    return loop


# --- idemkit --------------------------------------------------------------------------------------------------------


def _consumer(place: Place) -> IdempotentConsumer:
    backend = DynamoBackend(
        table="idemkit", endpoint_url=place.ledger, region_name=REGION, create_table=False, config=_config()
    )
    return sqs_consumer(backend=backend, visibility_timeout_seconds=VISIBILITY)


class CountedClient:
    """What idemkit's loop asks of boto3's client, with the deletes counted."""

    def __init__(self, client: Any, countdown: Countdown) -> None:
        self.receive_message = client.receive_message
        self._client, self._countdown = client, countdown

    def delete_message(self, **arguments: str) -> None:
        """As boto3's."""
        self._client.delete_message(**arguments)
        self._countdown.done(1)


def idemkit_threads(place: Place, concurrency: int, stack: ExitStack) -> Loop:
    """Drain it with idemkit's own loop, which handles one message at a time, in so many threads."""
    consumer = _consumer(place)
    consumer.handle(lambda message: handle(json.loads(message["Body"])))
    client = boto3.client("sqs", endpoint_url=place.sqs, region_name=REGION, config=_config())
    stack.callback(client.close)

    def loop(countdown: Countdown) -> None:
        def work() -> None:
            run_forever(
                consumer,
                sqs_client=CountedClient(client, countdown),
                queue_url=place.queue,
                visibility_timeout=VISIBILITY,
                wait_time_seconds=WAIT,
                stop=lambda: countdown.over,
            )

        _in_threads(work, concurrency)

    return loop


def idemkit_tasks(place: Place, concurrency: int, stack: ExitStack) -> Loop:
    """Drain it with idemkit's ``dispatch`` and aioboto3: each task handles ten at once, and deletes them together."""
    consumer = _consumer(place)
    runner = stack.enter_context(asyncio.Runner())
    opened = AsyncExitStack()
    stack.callback(lambda: runner.run(opened.aclose()))
    made = aioboto3.Session().client("sqs", endpoint_url=place.sqs, region_name=REGION, config=_config())

    async def connected() -> Any:
        opened.push_async_callback(consumer._backend.aclose)
        return await opened.enter_async_context(made)

    client = runner.run(connected())

    @consumer.handle
    async def handle_message(message: Message) -> dict[str, bool]:
        return await handle_async(json.loads(message["Body"]))

    async def work(countdown: Countdown) -> None:
        while not countdown.over:
            messages = (await client.receive_message(**_received(place))).get("Messages", [])
            results = await asyncio.gather(*(consumer.dispatch(message) for message in messages))
            done = [
                message
                for message, result in zip(messages, results, strict=True)
                if result.action is ConsumerAction.ACK
            ]
            if done:
                told = await client.delete_message_batch(QueueUrl=place.queue, Entries=_entries(done))
                countdown.done(len(told["Successful"]))

    async def all_of(countdown: Countdown) -> None:
        await asyncio.gather(*(work(countdown) for _ in range(concurrency // BATCH)))

    return lambda countdown: runner.run(all_of(countdown))


# --- Powertools -----------------------------------------------------------------------------------------------------


def powertools(place: Place, concurrency: int, stack: ExitStack) -> Loop:
    """Drain it with Powertools' idempotency and boto3: each thread has ten handled at once, and deletes them together."""
    client = boto3.client("sqs", endpoint_url=place.sqs, region_name=REGION, config=_config())
    stack.callback(client.close)
    threads = stack.enter_context(ThreadPoolExecutor(concurrency))

    @idempotent_function(
        data_keyword_argument="message",
        persistence_store=DynamoDBPersistenceLayer("powertools", boto3_client=boto3_client(place.ledger)),
        config=IdempotencyConfig(event_key_jmespath="MessageId", lambda_context=Context()),
    )
    def handle_message(message: Message) -> dict[str, bool]:
        return handle(json.loads(message["Body"]))

    def loop(countdown: Countdown) -> None:
        def work() -> None:
            while not countdown.over:
                messages = client.receive_message(**_received(place)).get("Messages", [])
                for _ in threads.map(lambda message: handle_message(message=message), messages):
                    pass
                if messages:
                    told = client.delete_message_batch(QueueUrl=place.queue, Entries=_entries(messages))
                    countdown.done(len(told["Successful"]))

        _in_threads(work, concurrency // BATCH)

    return loop


def _received(place: Place) -> dict[str, object]:
    return {
        "QueueUrl": place.queue,
        "MaxNumberOfMessages": BATCH,
        "WaitTimeSeconds": WAIT,
        "VisibilityTimeout": VISIBILITY,
        "AttributeNames": ["ApproximateReceiveCount"],
    }


def _entries(messages: list[Message]) -> list[dict[str, str]]:
    return [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]


# --- and no idempotency ---------------------------------------------------------------------------------------------


def bare(place: Place, stack: ExitStack) -> Loop:
    """Receive and delete, by onceward's client in a few threads, and nothing else: what the queue's server can do."""
    queue = Queue(place.queue, region=REGION, endpoint=place.sqs)
    stack.callback(queue.close)

    def loop(countdown: Countdown) -> None:
        def work() -> None:
            while not countdown.over:
                messages = queue.receive(BATCH, WAIT)
                countdown.done(queue.delete_many([message.receipt for message in messages]).count(None))

        _in_threads(work, BARE_THREADS)

    return loop


def _in_threads(work: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def loops(place: Place, concurrency: int, stack: ExitStack) -> dict[str, Loop]:
    """Return all, working at ``place``."""
    return {
        "onceward, async handler": worker(handle_async, place, concurrency, stack),
        "onceward, plain handler": worker(handle, place, concurrency, stack),
        "idemkit, aioboto3 and dispatch": idemkit_tasks(place, concurrency, stack),
        "idemkit, run_forever in threads": idemkit_threads(place, concurrency, stack),
        "Powertools, boto3 in threads": powertools(place, concurrency, stack),
        "receive and delete, no ledger": bare(place, stack),
    }

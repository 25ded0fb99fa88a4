"""Taskiq's tasks under a guard, with its own receiver and its messages in Redis."""

import asyncio
import gc
import json
import uuid

import pytest
from taskiq import Context, SmartRetryMiddleware, TaskiqDepends
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq.task import AsyncTaskiqTask
from taskiq_redis import (
    ListQueueBroker,
    ListRedisScheduleSource,
    PubSubBroker,
    RedisAsyncResultBackend,
    RedisStreamBroker,
)

from onceward import Once
from onceward.taskiq import exactly
from tables import each

# taskiq-redis leaves the connections of a cancelled receiver to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE = 180  # seconds
CONTEXT = TaskiqDepends()


@pytest.fixture
def queue():
    return f"orders-{uuid.uuid4().hex}"


@pytest.fixture
def broker(redis, queue):
    return broker_at(redis.url, queue)


@pytest.fixture
def once():
    return Once("memory:", lease=3)  # a busy task comes again when the lease ends


def broker_at(url, queue, **options):
    made = RedisStreamBroker(url, queue_name=queue, idle_timeout=2000, xread_block=100, consumer_id="0", **options)
    retries = SmartRetryMiddleware(default_retry_count=5, default_delay=0.01)
    return made.with_result_backend(RedisAsyncResultBackend(url)).with_middlewares(retries)


def task(broker, once, function, *, labels=None, later=None, **options):
    options.setdefault("name", "charge")
    declared = broker.task(task_name=uuid.uuid4().hex, retry_on_error=True, **(labels or {}))(function)
    return exactly(once, later=later, **options)(declared)


def work(broker, send, *, until=None, ack=None):
    """Send tasks with a receiver running, and return their results, or what ``until`` waits for."""

    async def run():
        await broker.startup()
        receiver = asyncio.create_task(run_receiver_task(broker, ack_time=ack))
        try:
            sent = await send()
            if until is not None:
                async with asyncio.timeout(PATIENCE):
                    while not until():
                        await asyncio.sleep(0.05)
                return None
            return [await one.wait_result(timeout=PATIENCE, check_interval=0.05) for one in sent]
        finally:
            others = {receiver, *asyncio.all_tasks()} - {asyncio.current_task()}
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await broker.shutdown()

    try:
        return asyncio.run(run())
    finally:
        gc.collect()  # what the receiver leaves open is not found in another test


def pending(redis, queue):
    return redis.client().xpending(queue, "taskiq")["pending"]


def test_two_tasks_of_one_order_take_effect_once(broker, once):
    runs = []

    def charge(order: dict, context: Context = CONTEXT) -> int:
        runs.append(order)
        return len(runs)

    guarded = task(broker, once, charge, key="order.id", fingerprint=True)
    results = work(broker, lambda: asyncio.gather(*(guarded.kiq({"id": number}) for number in (1, 1, 1))))
    assert [result.return_value for result in results] == [1, 1, 1]
    assert runs == [{"id": 1}]


def test_a_busy_task_comes_again_and_counts_no_retry(broker, once):
    once.acquire(42, name="charge", lease=3)

    async def charge(order: int, context: Context = CONTEXT) -> int:
        return context.message.labels.get("_retries", 0)

    guarded = task(broker, once, charge, key="order")
    (result,) = work(broker, lambda: asyncio.gather(guarded.kiq(42)))
    assert (result.is_err, result.return_value) == (False, 0)


def test_a_busy_task_can_wait_in_a_schedule(broker, once, redis):
    once.acquire(42, name="charge", lease=600)
    source = ListRedisScheduleSource(redis.url, prefix=uuid.uuid4().hex)
    guarded = task(broker, once, print_order, key="order", later=source)
    waits = lambda: redis.client().keys(f"{source._prefix}:time:*")

    async def send():
        await guarded.kiq(42)
        async with asyncio.timeout(PATIENCE):
            while not waits():
                await asyncio.sleep(0.05)
        await source._connection_pool.disconnect()  # a schedule has no call that closes it
        return []

    work(broker, send)
    assert len(waits()) == 1


def test_a_parked_task_goes_to_the_dead_letters_and_is_not_retried(broker, once, redis, queue):
    runs = []

    async def charge(order: int) -> None:
        runs.append(order)
        raise ValueError("no such card")

    guarded = task(broker, once, charge, key="order", max_attempts=2)
    (result,) = work(broker, lambda: asyncio.gather(guarded.kiq(42)))
    assert result.is_err
    assert runs == [42, 42]
    ((_, letter),) = redis.client().xrange(f"{queue}.onceward-dead")
    labels = json.loads(letter["data"])["labels"]
    told = [labels[f"onceward-{name}"] for name in ("status", "from", "key")]
    assert told == ["parked", queue, "charge:42"]
    assert pending(redis, queue) == 0


def test_a_task_that_requeues_itself_gives_its_key_back_and_runs_again(broker, once):
    runs = []

    async def charge(order: int, context: Context = CONTEXT) -> None:
        runs.append(order)
        if len(runs) < 2:
            await context.requeue()

    guarded = task(broker, once, charge, key="order", on_error="park")
    work(broker, lambda: asyncio.gather(guarded.kiq(42)))
    assert runs == [42, 42]


def test_a_timeout_leaves_the_key_claimed_and_counts_as_a_retry(broker, once):
    runs = []

    async def charge(order: int, context: Context = CONTEXT) -> int:
        runs.append(order)
        if len(runs) < 2:
            await asyncio.sleep(PATIENCE)
        return int(context.message.labels.get("_retries", 0))

    # Shorter than the broker's idle_timeout: after that, a second delivery that counts no retry could win.
    guarded = task(broker, once, charge, key="order", labels={"timeout": 1})
    (result,) = work(broker, lambda: asyncio.gather(guarded.kiq(42)))
    assert result.return_value >= 1
    assert len(runs) >= 2


def test_a_worker_that_acknowledges_first_holds_a_guarded_task_to_its_end(broker, once, redis, queue):
    begun = []

    async def charge(order: int) -> None:
        begun.append(order)
        await asyncio.sleep(PATIENCE)

    guarded = task(broker, once, charge)
    held = lambda: begun and pending(redis, queue) == 1
    work(broker, lambda: asyncio.gather(guarded.kiq(42)), until=held, ack=AcknowledgeType.WHEN_RECEIVED)


def test_a_task_that_a_stopping_receiver_cancels_comes_again_and_counts_no_retry(redis, queue, once):
    begun = []

    async def charge(order: int, context: Context = CONTEXT) -> int:
        begun.append(order)
        if len(begun) < 2:
            await asyncio.sleep(PATIENCE)
        return int(context.message.labels.get("_retries", 0))

    first, second = broker_at(redis.url, queue), broker_at(redis.url, queue)
    guarded = task(first, once, charge, key="order")
    work(first, lambda: asyncio.gather(guarded.kicker().with_task_id(f"of-{queue}").kiq(42)), until=lambda: begun)
    exactly(once, key="order", name="charge")(second.task(task_name=guarded.task_name, retry_on_error=True)(charge))

    async def found():
        return [AsyncTaskiqTask(f"of-{queue}", second.result_backend)]

    (result,) = work(second, found)
    assert result.return_value == 0
    assert begun == [42, 42]


@each(
    ("made", "says"),
    [
        (ListQueueBroker, "forgets a message"),
        (PubSubBroker, "forgets a message"),
        (lambda url: broker_at(url, "orders", maxlen=1000), "maxlen"),
    ],
)
def test_a_broker_that_loses_messages_is_refused(made, says, once):
    with pytest.raises(ValueError, match=says):
        task(made("redis://127.0.0.1:1"), once, print_order)


def test_a_worker_without_retries_is_refused_at_its_start(redis, queue, once):
    broker = RedisStreamBroker(redis.url, queue_name=queue)
    task(broker, once, print_order)
    broker.is_worker_process = True
    with pytest.raises(ValueError, match="SmartRetryMiddleware"):
        asyncio.run(broker.startup())


async def print_order(order: int) -> None:
    print(order)

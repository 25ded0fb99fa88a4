"""Dramatiq's actors under a guard, with its own worker and its broker in memory."""

import time

import dramatiq
import pytest
from dramatiq import Retry, Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO, CurrentMessage, Middleware, MiddlewareError, Shutdown
from dramatiq.results import ResultFailure, Results
from dramatiq.results.backends import StubBackend

from faults.injected import Faults, fail_before, when
from onceward import Claim, Once, ResultNotRecorded, StoreError
from onceward.dramatiq import exactly

PATIENCE = 180_000  # milliseconds


@pytest.fixture
def broker():
    made = StubBroker()
    made.add_middleware(Results(backend=StubBackend(), store_results=True))
    made.add_middleware(AsyncIO())
    made.emit_after("process_boot")
    yield made
    made.close()


@pytest.fixture
def once():
    return Once("memory:", lease=3)  # a busy message comes again when the lease ends


@pytest.fixture
def work(broker):
    """Let a worker handle all messages, also those that are delayed."""
    workers = []

    def run(queue="default"):
        if not workers:
            workers.append(Worker(broker, worker_timeout=50, worker_threads=2))
            workers[0].start()
        broker.join(queue, timeout=PATIENCE, fail_fast=False)
        workers[0].join()

    yield run
    for worker in workers:
        worker.stop()


def actor(broker, once, function, **options):
    policy = {name: options.pop(name) for name in ("key", "max_attempts", "name") if name in options}
    policy.setdefault("name", "charge")
    return exactly(once, **policy)(
        dramatiq.actor(function, broker=broker, actor_name="charge", min_backoff=1, max_backoff=2, **options)
    )


def result(message, broker):
    return message.get_result(backend=broker.get_results_backend(), block=True, timeout=PATIENCE)


def dead(broker, queue="default"):
    return list(broker.dead_letters_by_queue[queue])


def test_a_message_that_comes_twice_runs_once(broker, once, work):
    runs = []

    def charge(order):
        runs.append(order)
        return len(runs)

    message = actor(broker, once, charge).send({"id": 1})
    broker.enqueue(message)
    work()
    assert runs == [{"id": 1}]
    assert result(message, broker) == 1


def test_a_busy_message_comes_again_and_uses_up_no_retry(broker, once, work):
    held = once.acquire(42, name="charge", lease=3)
    runs = []

    def charge(order):
        runs.append(CurrentMessage.get_current_message().options.get("retries", 0))

    actor(broker, once, charge, key="order", name="charge", max_retries=0).send(42)
    work()
    assert runs == [0]
    assert held.lost
    assert not dead(broker)


def test_a_parked_message_is_dead_lettered_and_not_retried(broker, once, work):
    runs = []

    def charge(order):
        runs.append(order)
        raise ValueError("no such card")

    message = actor(broker, once, charge, key="order", max_attempts=2, max_retries=50).send(42)
    work()
    assert runs == [42, 42]
    assert [letter.message_id for letter in dead(broker)] == [message.message_id]
    with pytest.raises(ResultFailure, match="Parked"):
        result(message, broker)


@pytest.mark.parametrize("fault", ["refused", "no JSON", "undecided"])
def test_a_failed_message_whose_retry_can_never_be_sent_is_dead_lettered(broker, once, work, fault, monkeypatch):
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.01)

    class Refusing(Middleware):
        def before_enqueue(self, _, message, __):
            if message.options.get("retries") and fault == "refused":
                raise MiddlewareError("no retries today")

    def charge(order):
        if fault == "no JSON":
            CurrentMessage.get_current_message().options["trace"] = object()
        raise ValueError("broken")

    def retry_when(retries, error):
        raise TypeError("retry_when itself")

    broker.add_middleware(Refusing())
    actor(broker, once, charge, **({"retry_when": retry_when} if fault == "undecided" else {})).send(1)
    work()
    assert [letter.args for letter in dead(broker)] == [(1,)]


def test_a_shutdown_is_no_failure_and_leaves_the_key_claimed(broker, once, work):
    seen = []

    def charge(order):
        seen.append(CurrentMessage.get_current_message().options.get("retries", 0))
        if len(seen) < 2:
            raise Shutdown

    actor(broker, once, charge, max_retries=0).send(42)
    began = time.monotonic()
    work()
    assert seen == [0, 0]
    assert time.monotonic() - began > 1  # the lease of the first run


def test_a_message_whose_success_was_not_recorded_does_not_come_again_by_retry(broker, once, work):
    broken, runs = [], []
    faulty = Once(Faults(once.store, when(lambda ask: bool(broken), fail_before(StoreError))), lease=3)

    def charge(claim: Claim):
        runs.append(claim.attempt)
        broken.append(1)
        try:
            claim.complete("paid")
        except ResultNotRecorded as error:
            broken.clear()
            raise Retry("later", delay=1) from error

    message = actor(broker, faulty, charge).send()
    work()
    assert runs == [1]
    assert result(message, broker) == "paid"


def test_a_broker_without_retries_is_refused_at_the_start(once):
    broker = StubBroker(middleware=[])
    with pytest.raises(ValueError, match="Retries"):
        exactly(once)(dramatiq.actor(print, broker=broker, actor_name="charge"))

"""``once.enqueue``: what is checked before anything is recorded, and what a lost reply does."""

import asyncio

import dramatiq
import pytest
from celery import Celery
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.stub import StubBroker
from procrastinate import App, Blueprint
from procrastinate.testing import InMemoryConnector
from redis import Redis
from rq.decorators import job
from taskiq import InMemoryBroker
from taskiq_redis import ListQueueBroker

from faults.injected import Faults, fail_after, fail_before
from onceward import Claim, KeyMissing, Once, StoreError
from onceward.dramatiq import exactly
from onceward.outbox import MessageNotSent, OutboxMessage, drain
from onceward.outbox.targets import open_target
from onceward.procrastinate import exactly as exactly_procrastinate
from onceward.stores.memory import MemoryStore
from tables import each
from waiting import until

broker = StubBroker()
app = App(connector=InMemoryConnector())
celery = Celery("shop", broker="memory://", set_as_current=False)
guards = Once("memory:")
ALONE = []


@dramatiq.actor(broker=broker, queue_name="orders")
def charge(order: int, key: str = "", *, note: str = "") -> None: ...


@exactly(guards, name="paid")
@dramatiq.actor(broker=broker, queue_name="orders")
def paid(order: int, claim: Claim) -> None: ...


@exactly_procrastinate(guards, name="ship")
@app.task(pass_context=True)
def ship(context, order: int, claim: Claim) -> None: ...


@app.task
def dispatch(order: int) -> None: ...


@app.task(queueing_lock="own")
def locked(order: int) -> None: ...


@InMemoryBroker().task
async def alone(order: int) -> None:
    ALONE.append(order)


@job("orders", connection=Redis())
def rq_job(order: int) -> None: ...


@job("orders", connection=Redis())
def rq_reserved(order: int, depends_on: str = "") -> None: ...


forgets = RabbitmqBroker(url="amqp://127.0.0.1:1", confirm_delivery=False)
unconfirmed = dramatiq.actor(lambda order: None, actor_name="unconfirmed", broker=forgets)
forgetful = ListQueueBroker("redis://127.0.0.1:1").task(task_name="forgetful")(lambda order: None)
unbound = Blueprint().task(lambda order: None, name="unbound")


def by_name(order: int) -> None: ...


@pytest.fixture
def once():
    broker.flush_all()
    yield Once(MemoryStore())
    drain(10)  # what this test has queued is not sent in the next one


def waiting():
    return list(broker.queues["orders"].queue) if "orders" in broker.queues else []


def jobs():
    return [dramatiq.Message.decode(data) for data in waiting()]


def test_a_key_queues_one_job_whose_id_follows_from_the_key(once):
    assert once.enqueue(charge, 7, note="n", key=("day", 1)) is True
    assert once.enqueue(charge, 8, key=("day", 1)) is False
    assert once.enqueue(charge, 7, "the task's own key", key=("day", 2)) is True
    assert drain(10) == 0
    (first, second) = jobs()
    assert (first.args, first.kwargs) == ((), {"order": 7, "note": "n"})
    assert second.kwargs == {"order": 7, "key": "the task's own key"}
    (record, _), _ = sorted(once.ledger.records(), key=lambda found: found[0].key)
    assert record.key.startswith("enqueue:test_enqueue:charge:")
    assert first.options["onceward-parent"] == record.key
    broker.flush_all()
    again = Once(MemoryStore())
    again.enqueue(charge, 9, key=("day", 1))
    drain(10)
    assert [found.message_id for found in jobs()] == [first.message_id]


@each(
    ("task", "args", "kwargs", "says"),
    [
        (charge, (), {}, "missing a required argument: 'order'"),
        (charge, ((7, 8),), {}, "JSON changes order"),
        (charge, (float("nan"),), {}, "JSON changes order"),
        (paid, (7,), {"claim": 1}, "unexpected keyword argument 'claim'"),
        (rq_job, (), {}, "missing a required argument"),
        (rq_reserved, (7,), {}, "the queue takes depends_on for itself"),
        (celery, (), {}, "is not a task"),
        (locked, (7,), {}, "leave out the task's queueing_lock"),
        (unconfirmed, (7,), {}, r"confirm_delivery=True"),
        (forgetful, (7,), {}, "forgets a message"),
        (by_name, (7,), {}, "is not a task: give one of Celery"),
    ],
)
def test_what_cannot_be_queued_is_refused_before_anything_is_recorded(once, task, args, kwargs, says):
    with pytest.raises((TypeError, ValueError), match="(?i)" + says):
        once.enqueue(task, *args, key="k", **kwargs)
    assert list(once.ledger.records()) == []
    assert waiting() == []


def test_a_task_without_an_app_and_a_key_that_is_missing_are_refused(once):
    with pytest.raises(Exception, match=r"(?i)bound"):
        once.enqueue(unbound, 7, key="k")
    with pytest.raises(KeyMissing):
        once.enqueue(charge, 7, key=None)
    assert list(once.ledger.records()) == []


def test_a_task_that_a_relay_could_not_import_is_refused(once):
    @dramatiq.actor(broker=broker, queue_name="orders", actor_name="hidden")
    def hidden(order): ...

    with pytest.raises(ValueError, match="has no global name for this task"):
        once.enqueue(hidden, 7, key="k")
    hidden.fn.__module__ = "__main__"
    with pytest.raises(ValueError, match="cannot import a task of __main__"):
        once.enqueue(hidden, 7, key="k")
    assert list(once.ledger.records()) == []


def test_a_coroutine_that_has_queued_its_job_has_sent_it_so_that_its_loop_can_end(once):
    async def queue():
        return [await once.enqueue_async(ship, 7, key=key) for key in ("loop 1", "loop 2", "loop 1")]

    app.connector.reset()
    assert asyncio.run(queue()) == [True, True, False]
    assert [job["args"] for job in app.connector.jobs.values()] == [{"order": 7}] * 2
    assert drain(10) == 0


def test_a_coroutine_waits_for_a_send_that_fails_and_not_while_its_target_pauses(once, monkeypatch):
    asked = []

    async def fail(*_, **__):
        asked.append(1)
        raise OSError("away")

    async def queue():
        return [await once.enqueue_async(dispatch, 7, key=key) for key in ("first", "second")]

    monkeypatch.setattr(app.connector, "execute_query_all_async", fail)
    assert asyncio.run(asyncio.wait_for(queue(), 9)) == [True, True]
    assert asked in ([1], [1, 1])  # on a busy machine the pause may be over


def test_a_caller_without_an_event_loop_starts_the_broker_in_one_of_onceward(once):
    assert once.enqueue(alone, 7, key="k") is True
    assert drain(10) == 0
    until(lambda: ALONE == [7])


def lossy_store(*losses):
    """Return a store that loses the first inserts, or the replies to them."""
    left = list(losses)
    store = Faults(MemoryStore(), lambda ask: left.pop(0) if left and ask.verb == "insert" else None)
    store.capabilities = MemoryStore.capabilities
    return store


REQUEST, REPLY = fail_before(), fail_after()


@pytest.mark.parametrize("losses", [[REQUEST], [REPLY], [REPLY, REQUEST], [REPLY, REPLY]])
def test_a_lost_reply_is_asked_for_again(once, losses):
    lossy = Once(lossy_store(*losses))
    assert lossy.enqueue(charge, 7, key="k") is True
    assert lossy.enqueue(charge, 7, key="k") is False
    assert drain(10) == 0
    assert len(waiting()) == 1


def test_a_call_that_raises_for_a_lost_reply_is_followed_by_one_that_sends_its_job_once(once):
    store = lossy_store(*[REPLY] * 1000)
    lossy = Once(store, lease=0.5)
    with pytest.raises(StoreError):
        lossy.enqueue(charge, 7, key="k")
    store.plan = lambda ask: None
    assert lossy.enqueue(charge, 7, key="k") is False
    assert waiting() == []  # the send lease of the first call lasts
    until(lambda: lossy.enqueue(charge, 7, key="k") or drain(1) or waiting())
    assert lossy.enqueue(charge, 7, key="k") is False
    drain(10)
    assert len(waiting()) == 1


def test_a_target_says_what_is_wrong_with_an_address_or_a_message(monkeypatch, tmp_path):
    (tmp_path / "script_that_exits.py").write_text("import sys; sys.exit(2)")
    monkeypatch.syspath_prepend(tmp_path)
    for address, says in (
        ("task:no_such_module:charge", "onceward relay --import no_such_module"),
        ("task:script_that_exits:charge", "cannot import it: SystemExit: 2"),
    ):
        with pytest.raises(ValueError, match=says):
            open_target(address)
    target = open_target("task:test_enqueue:charge")
    for body, more in (("[7]", {}), ('{"order": 7}', {"headers": {"tenant": "eu"}}), ('{"order": 7}', {"delay": 1.0})):
        with pytest.raises((ValueError, TypeError)):
            target.check(OutboxMessage("k", body, **more))
    (answer,) = target.send([OutboxMessage("k", '{"order": 7, "tz": "UTC"}')])  # a newer version of the task takes it
    assert isinstance(answer, MessageNotSent)

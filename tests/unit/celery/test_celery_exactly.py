"""The decorator and the class in an eager application, what they refuse, and what doctor says of applications."""

import json
import subprocess
import sys
from contextvars import copy_context
from typing import ClassVar

import pytest
from celery import Celery, current_app
from kombu import Queue

from onceward import Busy, KeyMissing, Once, Parked
from onceward.celery import OnceTask, exactly
from onceward.celery.doctor import celery_findings
from onceward.celery.ends import has_dead_letters
from tables import each


@pytest.fixture
def app():
    before = current_app._get_current_object()
    made = Celery("shop", broker="memory://", backend="cache+memory://")
    made.conf.update(task_always_eager=True, task_eager_propagates=True)
    yield made
    before.set_current()


def test_an_eager_task_runs_once(app, once):
    runs = []

    @app.task(shared=False)
    @exactly(once, key="order.id")
    def charge(order: dict) -> str:
        runs.append(order)
        return order["id"]

    assert [charge.delay({"id": "a"}).get(), charge.apply(({"id": "a"},)).get(), charge({"id": "a"})] == ["a"] * 3
    assert runs == [{"id": "a"}]
    assert once.ledger.show(f"{charge.name}:a")[0].attempts == 1


def test_a_bound_task_gets_itself_and_is_no_part_of_the_fingerprint(app, once):
    @app.task(shared=False, bind=True)
    @exactly(once, key="order.id", fingerprint=True)
    def charge(this, order):
        return this.request.id

    first = charge.apply_async(({"id": "a"},), task_id="one").get()
    assert first == charge.apply_async(({"id": "a"},), task_id="two").get() == "one"


def test_the_task_id_is_the_default_key(app, once):
    @app.task(shared=False)
    @exactly(once)
    def charge(order):
        return order

    assert charge.apply_async((1,), task_id="one").get() == charge.apply_async((2,), task_id="one").get() == 1
    with pytest.raises(KeyMissing, match="Send the task, or give key="):
        charge(3)


def test_a_claim_that_another_task_left_makes_no_delivery_a_direct_call(app, once):
    @app.task(shared=False)
    @exactly(once)
    def charge(order):
        with once.claim("inner"), pytest.raises(KeyMissing):
            charge.run(order)
        return order

    def deliver():
        once.claim("never left").__enter__()
        charge.push_request(id="one", called_directly=False)
        return charge.run(1)

    assert copy_context().run(deliver) == 1


def test_eager_errors_go_on_as_they_are(app, once):
    @app.task(shared=False, name="shop.charge", autoretry_for=(ValueError,))
    @exactly(once, key="order", on_error="park")
    def charge(order):
        raise TypeError(order)

    with pytest.raises(TypeError, match="a"):
        charge.delay("a")
    with pytest.raises(Parked):
        charge.delay("a")
    once.acquire("b", name="shop.charge")
    with pytest.raises(Busy):
        charge.delay("b")


def test_a_class_of_tasks_and_the_whole_application(once):
    runs = []

    class ShopTask(OnceTask):
        abstract = True

    ShopTask.once = once
    app = Celery("shop", broker="memory://", task_cls=ShopTask, set_as_current=False)
    app.conf.task_always_eager = True

    class Refund(OnceTask):
        name = "shop.refund"
        options: ClassVar = {"key": "order"}

        def run(self, order):
            runs.append(order)
            return order

    Refund.once = once
    refund = app.register_task(Refund())

    @app.task(shared=False, name="shop.charge")
    def charge(order):
        runs.append(order)

    assert [refund.delay("a").get(), refund.delay("a").get()] == ["a", "a"]
    charge.apply_async(("b",), task_id="one")
    charge.apply_async(("b",), task_id="one")
    assert runs == ["a", "b"]
    assert not hasattr(app.tasks["celery.chord_unlock"].run, "onceward_guard")


def test_what_does_not_fit_is_refused(app, once):
    async def coroutine(order): ...
    def charge(order): ...
    def again(this, order):
        return this.retry(throw=False)

    by_order = exactly(once, key="order")
    for make, error, says in (
        (lambda: by_order(coroutine), TypeError, "Celery cannot await it"),
        (lambda: exactly(once, key="order", keep_input=True)(charge), TypeError, "their broker keeps the arguments"),
        (lambda: exactly(once, key="other")(charge), ValueError, "names no parameter"),
        (lambda: by_order(app.task(charge, shared=False)), TypeError, "write @exactly"),
        (lambda: by_order(charge)("a"), TypeError, "is not a task yet"),
        (lambda: app.task(by_order(again), bind=True, shared=False).delay("a"), TypeError, "without throw=False"),
        (lambda: app.task(charge, base=OnceTask, lazy=False, shared=False, name="b"), TypeError, "its ledger"),
        (lambda: exactly("sqlite:///orders.db", key="order")(charge), TypeError, "give an Once"),
    ):
        with pytest.raises(error, match=says):
            make()


SAFE = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_acks_on_failure_or_timeout": False,
    "broker_transport_options": {"confirm_publish": True},
}


def application(broker="amqp://", *, options=None, task=None, **settings):
    """An application with one guarded task and safe settings, but for what is given."""
    app = Celery("shop", broker=broker, backend="rpc://", set_as_current=False)
    app.conf.update(SAFE | settings)

    @app.task(shared=False, name="shop.charge", **(task or {}))
    @exactly(Once("memory:"), key="order.id", **({"max_attempts": 5} | (options or {})))
    def charge(order): ...

    return app


def unsafe(app):
    """The checks that are not ok, and their levels."""
    return {finding.check: finding.level for finding in celery_findings(app) if finding.level != "ok"}


def test_safe_settings_are_ok():
    assert unsafe(application()) == unsafe(application("sqs://")) == unsafe(application("redis://")) == {}
    assert unsafe(Celery("shop", set_as_current=False)) == {"tasks": "error"}
    app = Celery("shop", broker="sqs://", set_as_current=False)

    @app.task(shared=False, base=OnceTask, once=Once("memory:"), options={"max_attempts": 5})
    def charge(order): ...

    assert unsafe(app) == {}  # the class is safe by itself


@each(
    ("given", "check", "level"),
    [
        ({"task_acks_late": False}, "task_acks_late", "error"),
        ({"task_reject_on_worker_lost": False}, "task_reject_on_worker_lost", "error"),
        ({"broker_transport_options": {}}, "confirm_publish", "error"),
        ({"task": {"time_limit": 9, "acks_on_failure_or_timeout": True}}, "task_acks_on_failure_or_timeout", "warning"),
        ({"broker": "redis://", "options": {"lease": 3600.0}}, "visibility_timeout", "warning"),
        ({"broker": "sqs://", "options": {"lease": 2000.0}}, "visibility_timeout", "warning"),
        ({"broker": "redis://", "options": {"retention": 999}}, "visibility_timeout", "error"),
    ],
)
def test_each_unsafe_setting_is_told_alone_with_its_fix(given, check, level):
    app = application(**given)
    assert unsafe(app) == {check: level}
    (finding,) = [finding for finding in celery_findings(app) if finding.level != "ok" and finding.check == check]
    assert finding.says
    assert finding.why
    assert finding.fix


def test_only_rabbitmq_has_dead_letter_exchanges():
    """On another broker a task that is rejected is gone."""
    queue = Queue("celery", queue_arguments={"x-dead-letter-exchange": "dead"})
    assert not has_dead_letters(Celery(broker="redis://", task_queues=[queue], set_as_current=False), "celery")
    assert has_dead_letters(Celery(broker="amqps://", task_queues=[queue], set_as_current=False), "celery")


@pytest.mark.slow
def test_the_command_loads_the_application(tmp_path):
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\nfrom onceward import Once\nfrom onceward.celery import exactly\n"
        "app = Celery('shop', broker='redis://')\n"
        "@app.task\n@exactly(Once('memory:'), key='order.id')\ndef charge(order): ...\n"
    )
    command = [sys.executable, "-m", "onceward", "doctor", "--json", "--celery"]
    done = subprocess.run([*command, "shop:app"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done
    levels = {finding["check"]: finding["level"] for finding in json.loads(done.stdout)["findings"]}
    assert levels["task_acks_late"] == "error"
    missing = subprocess.run([*command, "nothing:app"], cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 2
    assert "--celery nothing:app: there is no Celery application" in missing.stderr

"""The decorator and the class in an eager application, and what they refuse."""

from typing import ClassVar

import pytest
from celery import Celery, current_app

from onceward import Busy, KeyMissing, Parked
from onceward.celery import OnceTask, exactly


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


def test_what_does_not_fit_is_refused_when_decorating(app, once):
    async def coroutine(order): ...

    def charge(order): ...

    by_order = exactly(once, key="order")
    for make, error, says in (
        (lambda: by_order(coroutine), TypeError, "Celery cannot await it"),
        (lambda: exactly(once, key="order", keep_input=True)(charge), TypeError, "their broker keeps the arguments"),
        (lambda: exactly(once, key="other")(charge), ValueError, "names no parameter"),
        (lambda: by_order(app.task(charge, shared=False)), TypeError, "write @exactly"),
        (lambda: by_order(charge)("a"), TypeError, "is not a task yet"),
        (lambda: app.task(charge, base=OnceTask, lazy=False, shared=False, name="b"), TypeError, "its ledger"),
        (lambda: exactly("sqlite:///orders.db", key="order")(charge), TypeError, "give an Once"),
    ):
        with pytest.raises(error, match=says):
            make()

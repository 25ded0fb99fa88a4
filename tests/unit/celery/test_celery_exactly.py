"""The decorator and the class in an eager application, and what they refuse."""

from typing import ClassVar

import pytest
from celery import Celery, current_app
from celery.exceptions import Ignore, Retry

from onceward import Busy, Claim, KeyMissing, Once, Parked, ResultNotRecorded, StoreError
from onceward.celery import OnceTask, exactly
from onceward.testing.faults import Faults, fail_before, when


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


def test_the_task_name_is_the_namespace_whoever_calls(app, once):
    @app.task(shared=False, name="shop.inner")
    @exactly(once, key="order")
    def inner(order):
        return order

    @app.task(shared=False, name="shop.outer")
    @exactly(once, key="order")
    def outer(order):
        return inner.run(order)

    assert outer.delay("a").get() == "a"
    assert {record.key for record, _ in once.ledger.records()} == {"shop.inner:a", "shop.outer:a"}


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


def test_an_ignored_task_is_done(app, once):
    runs = []

    @app.task(shared=False)
    @exactly(once, key="order")
    def charge(order):
        runs.append(order)
        raise Ignore("nothing to do")

    for _ in range(2):
        with pytest.raises(Ignore, match="nothing to do"):
            charge("a")
    assert runs == ["a"]


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
        (
            lambda: app.task(charge, base=OnceTask, lazy=False, shared=False, name="other"),
            TypeError,
            "give the task its ledger",
        ),
        (lambda: exactly("sqlite:///orders.db", key="order")(charge), TypeError, "give an Once"),
    ):
        with pytest.raises(error, match=says):
            make()


def test_a_key_completed_in_vain_is_not_given_back_for_a_retry(app, once):
    broken, attempts = [], []
    faulty = Once(Faults(once.store, when(lambda ask: bool(broken), fail_before(StoreError))))

    @app.task(shared=False, name="shop.charge", bind=True, max_retries=1)
    @exactly(faulty, key="order")
    def charge(self, order, claim: Claim):
        attempts.append(claim.attempt)
        broken.append(1)
        try:
            claim.complete("paid")
        except ResultNotRecorded as error:
            broken.clear()
            raise self.retry(exc=error, countdown=0) from error

    with pytest.raises((Busy, Retry)):
        charge.apply(("a",), throw=True).get()
    assert attempts == [1]

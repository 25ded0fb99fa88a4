"""What a guarded call came to: a run or a replay, its errors, handlers that return what should be awaited, and a COMMIT without a reply."""

import asyncio
import copy
import pickle

import pytest

import onceward
from onceward.core import steps
from onceward.core.drivers import drive
from onceward.core.protocol import completed, last_write
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from queues.batches import called
from tables import each

pytestmark = pytest.mark.sampled(form=2)


@pytest.mark.parametrize("form", ["decorated", "decorated_async", "run", "run_async"])
def test_a_run_is_told_from_its_replay(once, form):
    failed = []

    def double(order):
        if not failed:
            failed.append(order)
            raise ValueError(order)
        return order * 2

    async def double_async(order):
        return double(order)

    named = once.using(name="double")
    call = {
        "decorated": named(key="order")(double).outcome,
        "decorated_async": lambda order: asyncio.run(named(key="order")(double_async).outcome(order)),
        "run": lambda order: named.run_outcome(order, double, order),
        "run_async": lambda order: asyncio.run(named.run_outcome_async(order, double_async, order)),
    }[form]
    with pytest.raises(ValueError, match="7"):
        call(7)
    first, second = call(7), call(7)
    assert (first.value, first.replayed, first.attempt) == (14, False, 2)
    assert (second.value, second.replayed, second.attempt) == (14, True, 2)
    ((record, _),) = once.ledger.records()
    assert first.recorded_at == second.recorded_at == record.updated_at >= record.created_at


def test_an_answer_from_memory_is_a_replay_too(once):
    guarded = once(key="order", cache=10, name="n")(lambda order: order)
    first, second = guarded.outcome(1), guarded.outcome(1)
    assert (first.replayed, second.replayed, second.attempt) == (False, True, 1)
    assert first.recorded_at == second.recorded_at


@each(
    "error",
    [
        onceward.Busy("k", 1.5),
        onceward.Parked("k", 3, "Failure: no"),
        onceward.Completed("k", {"a": 1}),
        onceward.LeaseLost("k", "complete"),
        onceward.ResultNotRecorded("k", [1], "the disk is full"),
        onceward.StoreError("x", transient=True),
    ],
)
def test_errors_can_be_copied_and_pickled(error):
    for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


effects = []


async def work():
    effects.append("late")


def a_coroutine(key="k"):
    return work()


def later():
    yield effects.append("late")


async def later_async():
    yield effects.append("late")


def a_generator(key="k"):  # a generator function itself is refused when it is guarded
    return later()


def an_async_generator(key="k"):
    return later_async()


class Awaitable:
    closed = False

    def __await__(self):
        yield

    def close(self):
        Awaitable.closed = True


def an_awaitable(key="k"):
    effects.append("effect")
    return Awaitable()


@pytest.fixture(autouse=True)
def fresh():
    effects.clear()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@each(
    ("form", "handle"),
    [
        ("run", a_coroutine),
        ("run", a_generator),
        ("run_async", an_async_generator),
        ("batch", a_coroutine),
        ("checkpoint", a_coroutine),
    ],
)
def test_a_body_that_has_not_begun_is_closed_and_its_key_given_back(form, handle):
    store = MemoryStore()
    with pytest.raises(TypeError, match="Its body has not run, so the key is given back"):
        called(onceward.Once(store, name="n", final=(TypeError,)), form, handle)  # it is no outcome, either
    assert [record.status for record in store.records.values()] == [RELEASED]
    assert effects == []


@pytest.mark.parametrize("form", ["run", "batch"])
def test_an_effect_that_was_made_is_completed_whatever_is_returned(form):
    store = MemoryStore()
    with pytest.warns(onceward.ResultWarning):
        called(onceward.Once(store, name="n"), form, an_awaitable)
    assert [record.status for record in store.records.values()] == [COMPLETED]
    with pytest.raises(onceward.ResultUnavailable):
        called(onceward.Once(store, name="n"), form, an_awaitable)
    assert effects == ["effect"]
    assert not Awaitable.closed, "nothing of the user's is closed"


LOST = onceward.StoreError("the reply to the COMMIT was lost", transient=True)


def drive_apart(generator, store):
    try:
        request = next(generator)
        while True:
            request = generator.send(store.exchange(request.request))
    except StopIteration as end:
        return end.value


def transaction_of(claim, kind, *step):
    """Return a transaction of a claim in memory, as it is when its body begins."""
    claim.store.capabilities = {"transaction": "builtins:id"}
    transaction = getattr(claim, kind)(*step, None)
    transaction._before = claim.record
    return transaction


@pytest.fixture
def claim(once):
    """A claim whose transaction has renewed it and completed it, as far as its connection knows."""
    claim = once.acquire("k")
    before = claim.record
    claim.transacted = transaction_of(claim, "transaction")
    claim.record = (
        last_write(before, completed("1"), claim.policy)._replace(beat=before.beat + 2**39).at(0.0)
    )  # it leaps
    return claim


def test_a_completion_in_the_ledger_was_committed_also_if_a_relay_has_struck_out_its_messages(once, claim):
    once.store.records[claim.record.key] = done = claim.record._replace(lease_until=5.0, updated_at=5.0)
    assert drive_apart(claim.transacted._was_committed(LOST), once.store) is True
    assert claim.record == done
    once.store.records[claim.record.key] = claim.record._replace(beat=claim.record.beat + 3)
    assert drive_apart(claim.transacted._was_committed(LOST), once.store) is True


@pytest.mark.parametrize("renewals", [0, 1, 2, 3])
def test_renewals_whose_replies_were_lost_are_no_commit(once, claim, renewals):
    for _ in range(renewals):  # of the question itself
        held = once.store.records[claim.record.key]
        drive(steps.heartbeat(once.store, [(held, 60.0)], [claim.policy], claim.clock), once.store)
    assert drive_apart(claim.transacted._was_committed(LOST), once.store) is False
    assert (claim.record.status, once.store.records[claim.record.key].status) == (IN_PROGRESS, IN_PROGRESS)
    claim.complete(2)
    assert once.store.records[claim.record.key].status == COMPLETED


@each("kind", [("transaction",), ("step_transaction", "pay")])
def test_an_interrupt_leaves_nothing_that_was_not_committed(kind):
    once = onceward.Once("memory:", name="n", lease=60)
    with pytest.raises(ZeroDivisionError), once.claim("k") as claim:
        before = claim.record
        transaction = transaction_of(claim, *kind)
        claim.record = before._replace(beat=before.beat + 1, steps='[{"name":"pay"}]')  # as it would be committed
        asked = transaction._was_committed(onceward.StoreError("the reply was lost"))
        next(asked)
        with pytest.raises(KeyboardInterrupt):
            asked.throw(KeyboardInterrupt)
        assert claim.record == before
        raise ZeroDivisionError
    assert [record.steps for record, _ in once.ledger.records()] == [None]
    once.close()

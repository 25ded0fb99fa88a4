"""Time limits, cancellations and interrupts, raised from outside at any moment: what the handler has done is recorded all the same."""

import asyncio
import gc
import sqlite3

import pytest

from onceward import Once, current
from onceward.claim.lease import CURRENT
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.results.firmly import firmly
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_after, fail_before, settling, when
from tables import each


class SoftTimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded and RQ's JobTimeoutException."""


@pytest.fixture(autouse=True)
def outside():
    """A block whose end an interrupt has skipped leaves its claim in the context."""
    yield
    CURRENT.set(None)


def test_a_store_that_breaks_its_contract_still_says_handler_succeeded():
    store = Faults(MemoryStore(), when(settling, fail_before(ValueError)))
    with pytest.raises(ValueError, match="swap") as raised:
        Once(store, name="n").run("k", lambda: "done")
    assert "the handler succeeded" in "".join(raised.value.__notes__)


def test_a_time_limit_within_the_encoding_is_not_taken_for_a_bad_result():
    strikes = [SoftTimeLimit()]

    class Result(dict):
        def items(self):
            if strikes:
                raise strikes.pop()
            return super().items()

    with pytest.raises(SoftTimeLimit):
        firmly(lambda result: str(list(result.items())), Result(a=1))
    assert firmly(lambda result: str(list(result.items())), Result(a=1)) == "[('a', 1)]"
    assert isinstance(firmly(int, "x"), ValueError)  # what it raises each time


def test_a_transaction_whose_end_was_interrupted_is_rolled_back_first(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db?timeout=0.2", name="n")
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    connection.execute("CREATE TABLE effects (n)")

    def handle():
        transaction = current().transaction(connection)
        transaction.__enter__()
        connection.execute("INSERT INTO effects VALUES (1)")
        raise SoftTimeLimit  # as its __exit__ begins

    with pytest.raises(SoftTimeLimit) as raised:
        once.run("k", handle)
    assert not getattr(raised.value, "__notes__", ())
    assert not connection.in_transaction
    assert [record.status for record, _ in once.ledger.records()] == [RELEASED]
    once.close()


class Failure(Exception):
    pass


class Slow(MemoryStore):
    """Cut off before a request has its effect, as one to a server may be."""

    def __init__(self):
        super().__init__()
        self.settling = asyncio.Event()

    async def exchange_async(self, request):
        if self.records:
            self.settling.set()
        await asyncio.sleep(0.02)
        return await super().exchange_async(request)


@each("fails", [False, True])
@each("times", [1, 2, 3, 50])
def test_however_often_a_settling_is_cancelled_it_reaches_its_end(times, fails):
    async def handle():
        if fails:
            raise Failure
        return "done"

    async def main():
        store = Slow()
        once = Once(store, name="n")
        task = asyncio.create_task(once.run_async("k", handle))
        await store.settling.wait()
        for _ in range(times):  # as anyio's scopes do, at every turn of the loop
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        if times < 3:  # who is patient finds it recorded
            assert [record.status for record in store.records.values()] == [RELEASED if fails else COMPLETED]
        return store

    store = asyncio.run(main())  # which cancels what still runs, and waits for it
    assert [record.status for record in store.records.values()] == [RELEASED if fails else COMPLETED]


@each("interrupt", [KeyboardInterrupt, SystemExit])
@each("times", [1, 2, 3])
def test_interrupts_of_a_settling_end_the_loop_and_reach_who_runs_it(times, interrupt):
    left = [fail_before(interrupt)] * times
    store = Faults(MemoryStore(), lambda ask: left.pop() if left and settling(ask) else None)

    async def handle():
        return "done"

    with asyncio.Runner() as runner:  # which raises again what a task that is left over has for it
        with pytest.raises(interrupt):
            runner.run(Once(store, name="n").run_async("k", handle))
        assert not asyncio.all_tasks(runner.get_loop())
    assert not left
    assert [record.status for record in store.store.records.values()] == [COMPLETED if times < 3 else IN_PROGRESS]


def test_giving_back_what_an_interrupted_claim_has_won_is_tried_again():
    faults = [fail_after(KeyboardInterrupt), None, fail_before(), fail_after()]
    store = Faults(MemoryStore(), lambda _: faults.pop(0) if faults else None)
    with pytest.raises(KeyboardInterrupt):
        Once(store, name="n").run("k", pytest.fail)
    (record,) = store.store.records.values()
    assert (record.status, record.attempts, faults) == (RELEASED, 0, [])


@pytest.mark.filterwarnings("error")
def test_a_loop_that_ends_right_after_a_cancellation_records_the_end_and_warns_of_no_coroutine():
    async def main():
        store = Slow()
        task = asyncio.create_task(Once(store, name="n").run_async("k", asyncio.sleep, 0))
        await store.settling.wait()
        task.cancel()  # its end gets a task, which is cancelled before it begins
        return store

    store = asyncio.run(main())
    gc.collect()
    assert [record.status for record in store.records.values()] == [COMPLETED]

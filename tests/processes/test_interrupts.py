"""A time limit is an exception raised from outside, at any moment: what the handler has done is recorded all the same."""

import asyncio
import dataclasses
import os
import sqlite3

import pytest

from onceward import ForkedClaim, Once, ResultUnavailable, current
from onceward.claim.lease import CURRENT
from onceward.core.record import COMPLETED, RELEASED
from onceward.results.firmly import firmly
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_after, fail_before, settling, when


class SoftTimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded and RQ's JobTimeoutException."""


@pytest.fixture(autouse=True)
def outside():
    """A block whose end an interrupt has skipped leaves its claim in the context."""
    yield
    CURRENT.set(None)


@pytest.mark.parametrize("form", ["call", "await"])
def test_a_failure_is_recorded_although_a_time_limit_strikes_meanwhile(form):
    store = Faults(MemoryStore(), when(settling, fail_before(SoftTimeLimit), times=1))

    def handle():
        raise ZeroDivisionError

    with pytest.raises(SoftTimeLimit) as raised:
        run(Once(store, name="n"), form, handle)
    assert isinstance(raised.value.__context__, ZeroDivisionError)
    assert [(r.status, r.error) for r in store.store.records.values()] == [(RELEASED, "ZeroDivisionError")]


@pytest.mark.parametrize("form", ["call", "await"])
def test_a_time_limit_in_the_claim_gives_the_key_back(form):
    store = Faults(MemoryStore(), when(lambda ask: ask.verb == "insert", fail_after(SoftTimeLimit), times=1))
    with pytest.raises(SoftTimeLimit):
        run(Once(store, name="n"), form, pytest.fail)
    assert [(r.status, r.attempts) for r in store.store.records.values()] == [(RELEASED, 0)]


@pytest.mark.parametrize("form", ["call", "await"])
def test_a_store_that_breaks_its_contract_still_says_handler_succeeded(form):
    store = Faults(MemoryStore(), when(settling, fail_before(ValueError)))
    with pytest.raises(ValueError, match="swap") as raised:
        run(Once(store, name="n"), form, lambda: "done")
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


def test_a_batch_never_takes_a_time_limit_for_a_malformed_record():
    strikes = [SoftTimeLimit()]

    def key(order):
        if strikes:
            raise strikes.pop()
        return order

    with pytest.raises(SoftTimeLimit):
        Once("memory:").batch(lambda order: order, key=key, name="n").run(["1"])


def run(once, form, function):
    if form == "call":
        return once.using(name="n").run("k", function)

    async def main():
        return await once.run_async("k", function)

    return asyncio.run(main())


def test_a_time_limit_while_a_result_is_read_is_not_taken_for_a_misfit():
    left = []

    @dataclasses.dataclass
    class Receipt:
        number: int

        def __post_init__(self):
            if left:
                raise left.pop()

    def handle(key: str) -> Receipt:
        return Receipt(1)

    handle.__annotations__["return"] = Receipt
    guarded = Once("memory:")(key="key", name="n")(handle)
    assert guarded("k") == Receipt(1)
    left.append(SoftTimeLimit())
    with pytest.raises((SoftTimeLimit, ValueError)) as raised:
        guarded("k")
    assert not isinstance(raised.value, ResultUnavailable)
    assert guarded("k") == Receipt(1)


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


def test_an_abandoned_transaction_leaves_alone_what_was_begun_since(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="n")
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    connection.execute("CREATE TABLE effects (n)")
    abandoned = once.transaction("k", connection)
    abandoned.__enter__()
    connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    connection.execute("INSERT INTO effects VALUES (1)")
    abandoned.__del__()
    connection.execute("COMMIT")
    assert connection.execute("SELECT n FROM effects").fetchall() == [(1,)]
    once.close()


def test_a_checkpoint_forked_while_it_reads_a_key_claims_nothing_in_child(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="n")
    children = []

    def key(item):
        children.append(os.fork())
        return item

    with once.checkpoint(lambda _: None, key=key) as sink:
        try:
            sink.add("k")
        except ForkedClaim:
            os._exit(7)
        if not children[0]:
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7
    assert [(r.status, r.attempts) for r, _ in once.ledger.records()] == [(COMPLETED, 1)]
    once.close()

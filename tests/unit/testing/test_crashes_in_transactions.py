"""Crash tests of handlers that commit their effect with the record."""

import sqlite3

import pytest

from onceward import Claim, Completed, Once, StepMade
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing import Crashes

pytestmark = pytest.mark.slow

shop = Once("sqlite:////nowhere/at/all/orders.db")


def runs(crashes, tmp_path, **options):
    """Yield each run, with a connection to its ledger."""
    place = lambda: str(tmp_path / f"{crashes.runs}.db")
    for crash in crashes(ledger=lambda clock: SqliteStore(place(), clock=clock), **options):
        connection = sqlite3.connect(place(), isolation_level=None)
        connection.execute("CREATE TABLE payments (id)")
        yield crash, connection
        connection.close()


def paid(connection):
    return [id_ for (id_,) in connection.execute("SELECT id FROM payments")]


def in_one_transaction(order, connection):
    try:
        with shop.transaction(order["id"], connection, name="pay") as tx:
            connection.execute("INSERT INTO payments VALUES (?)", (order["id"],))
            tx.result = "paid"
            return tx.result
    except Completed as done:
        return done.result


@shop(key="order.id")
def in_a_claims_transaction(order: dict, connection, claim: Claim) -> str:
    with claim.transaction(connection) as tx:
        connection.execute("INSERT INTO payments VALUES (?)", (order["id"],))
        tx.result = "paid"
    return "paid"


@shop(key="order.id")
def in_a_steps_transaction(order: dict, connection, claim: Claim) -> str:
    try:
        with claim.step_transaction("pay", connection) as tx:
            connection.execute("INSERT INTO payments VALUES (?)", (order["id"],))
            tx.result = "paid"
    except StepMade:
        pass
    return "paid"


@shop(key="order.id")
def beside_the_record(order: dict, connection) -> str:
    connection.execute("INSERT INTO payments VALUES (?)", (order["id"],))
    return "paid"


@pytest.mark.parametrize("handler", [in_one_transaction, in_a_claims_transaction, in_a_steps_transaction])
def test_effects_that_commit_with_their_record_happen_once(handler, tmp_path):
    with Crashes() as crashes:
        for crash, connection in runs(crashes, tmp_path):
            assert crash.deliver(handler, {"id": "order-1"}, connection) == "paid", crash
            assert paid(connection) == ["order-1"], crash
    assert "COMMIT" in str(crash)
    assert crashes.runs > 8


def test_an_effect_in_a_commit_of_its_own_happens_twice(tmp_path):
    with Crashes() as crashes, pytest.raises(AssertionError, match="killed before the record of the result"):
        for crash, connection in runs(crashes, tmp_path):
            crash.deliver(beside_the_record, {"id": "order-1"}, connection)
            assert paid(connection) == ["order-1"], str(crash)

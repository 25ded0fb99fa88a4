"""The typed API as a feature: mypy and pyright check this file, also against the built wheel; nothing runs it."""

import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, assert_type
from uuid import UUID

import psycopg
from psycopg.rows import TupleRow

from onceward import (
    Attempt,
    Busy,
    CallOutcome,
    Claim,
    Completed,
    Once,
    Parked,
    Record,
    ResultNotRecorded,
    StoreError,
    Sweep,
    current,
)
from onceward.stores.memory import MemoryStore

once = Once("sqlite:///orders.db", lease=30, on_busy="skip", final=(ValueError,), retention=None)
Once("memory:", seal=(lambda plain: plain, lambda token: token))
Once(MemoryStore(), name="shop", clock=lambda: 0.0)


@dataclass
class Receipt:
    id: UUID


# A decorator keeps parameters and result.


@once(key="order.id", lease=60, heartbeat=None, max_attempts=5, on_busy=2.5)
def charge(order: dict[str, object], *, region: str = "eu") -> Receipt:
    return Receipt(UUID(int=0))


assert_type(charge({"id": 1}), Receipt)
assert_type(charge({"id": 1}, region="us"), Receipt)
charge(1)  # type: ignore[arg-type]
charge({}, place="us")  # type: ignore[call-arg]
charge()  # type: ignore[call-arg]


assert_type(charge.key_of({"id": 1}), str)
assert_type(charge.outcome({"id": 1}), CallOutcome[Receipt])
assert_type(charge.outcome({"id": 1}).value, Receipt)
assert_type(once.run_outcome("k", charge, {}), CallOutcome[Receipt])
charge.outcome(1)  # type: ignore[arg-type]


@once(key=lambda order: order["id"], fingerprint=True)
async def charge_async(order: dict[str, object]) -> Receipt:
    return Receipt(UUID(int=0))


async def outcomes() -> None:
    awaitable: Coroutine[Any, Any, Receipt] = charge_async({})
    assert_type(await awaitable, Receipt)
    assert_type(await charge_async.outcome({}), CallOutcome[Receipt])
    assert_type(await once.run_outcome_async("k", charge_async, {}), CallOutcome[Receipt])


class Service:
    @once(key="order")
    def method(self, order: int) -> str:
        return str(order)

    @classmethod
    @once(key="order")
    def of_class(cls, order: int) -> str:
        return str(order)


assert_type(Service().method(1), str)
assert_type(Service.of_class(1), str)
Service().method("1")  # type: ignore[arg-type]

# Options are checked by name and type.

once(key="order", leese=5)  # type: ignore[call-arg]
once(key="order", on_busy="wait")  # type: ignore[arg-type]
once(key="order", final=ValueError)  # type: ignore[arg-type]
once(lease=5)  # type: ignore[call-arg]
assert_type(once.using(lease=5, name="other"), Once)

# run() keeps the result and checks the arguments.


def plain(number: int, *, scale: float = 1.0) -> float:
    return number * scale


async def plain_async(number: int) -> str:
    return str(number)


assert_type(once.run("k", plain, 1, scale=2.0), float)
assert_type(once.run(("shop", 7, UUID(int=1)), plain, 1), float)
once.run("k", plain, "1")  # type: ignore[arg-type]
once.run("k", plain)  # type: ignore[call-arg]


async def coroutines() -> None:
    assert_type(await once.run_async("k", plain_async, 1), str)
    await once.run_async("k", plain_async, "1")  # type: ignore[call-overload]
    async with once.claim("k") as claim:
        assert_type(claim, Claim)
        await claim.complete_async(1)
    assert_type(await once.acquire_async("k"), Claim)


# Claims.


def claims(connection: sqlite3.Connection) -> None:
    with once.claim("k", lease=5) as claim:
        assert_type(claim, Claim)
        assert_type((claim.fence, claim.lost, claim.remaining), tuple[int, bool, float])
        assert_type(claim.key("refund", 1), str)
        assert_type(current(), Claim)
        claim.extend(5)
        claim.extend("5")  # type: ignore[arg-type]
    assert_type(once.acquire("k"), Claim)
    with once.transaction("k", connection) as tx:
        assert_type(tx.claim, Claim)
        assert_type(tx.connection, sqlite3.Connection)
        tx.result = {"any": "thing"}
    with claim.step_transaction(("stock", 1), connection) as step:
        assert_type(step.connection, sqlite3.Connection)


async def transactions(once: Once, connection: psycopg.AsyncConnection[TupleRow], claim: Claim) -> None:
    async with once.transaction("k", connection) as tx:
        assert_type(tx.connection, psycopg.AsyncConnection[TupleRow])
    async with claim.step_transaction("stock", connection) as step:
        assert_type(step.connection, psycopg.AsyncConnection[TupleRow])


def ledgers(once: Once) -> None:
    assert_type(once.ledger.show("k"), tuple[Record, float])
    assert_type(once.ledger.stats(), dict[str, int])
    assert_type(once.ledger.attempts("k"), list[Attempt])
    assert_type(once.complete_lapsed(charge, plain, released=600), Sweep)
    once.complete_lapsed("charge")  # type: ignore[arg-type]


def errors(error: Busy | Completed | Parked | ResultNotRecorded | StoreError) -> None:
    if isinstance(error, Busy):
        assert_type(error.retry_after, float)
    elif isinstance(error, Completed | ResultNotRecorded):
        assert_type(error.result, object)
    elif isinstance(error, Parked):
        assert_type((error.last_error, error.attempts), tuple[str | None, int])
    else:
        assert_type(error.transient, bool)


# A decorated function is still what a caller expects of it.
expected: Callable[[dict[str, object]], Receipt] = charge

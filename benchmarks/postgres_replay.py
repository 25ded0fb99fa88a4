"""The very statements of a guard, without the guard, over psycopg and asyncpg.

They are taken down while a guard runs, so they are always those that it sends. What changes from call to call, the keys and
the fences, is put in their place; everything else is constant.
"""

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import psycopg

from onceward import Once
from onceward.stores.sql.columns import FIELDS

KEY, FENCE = 2 + FIELDS.index("key"), 2 + FIELDS.index("fence")  # their columns in a reply
NAME = "RECORDED"  # of the orders that were taken down; the names of all others are as long
FIRST, FAILING = f"{NAME}-first-id", f"{NAME}-faild-id"  # as long as every other id
CASES = ("first call", "duplicate", "failed call", "its retry", "batch", "batch again")
Order = dict[str, str]
Row = Sequence[Any]
Steps = Generator[tuple[str, list[Any]], Sequence[Row], None]


class Boom(Exception):
    """What the failing handler raises."""


def handle(order: Order) -> dict[str, bool]:
    """Do nothing; an order can ask it to fail."""
    if "fail" in order:
        raise Boom
    return {"ok": True}


def orders(name: str, count: int) -> list[Order]:
    """Return orders with ids of their own; a name has as many characters as NAME."""
    assert len(name) == len(NAME)
    return [{"id": f"{name}-{n:08}"} for n in range(count)]


class Statement(NamedTuple):
    """A statement as it was sent."""

    text: str
    values: Sequence[Any]

    @property
    def fences(self) -> list[int]:
        """Which of its values are fences of records: those of each key. They are the only numbers that are as large."""
        first = [value[0] if type(value) is list else value for value in self.values]
        return [at for at, value in enumerate(first) if type(value) is int and value > 1e15]


class Recorder:
    """Connections that take down what is sent through them."""

    def __init__(self, conduit: Any) -> None:
        self._conduit = conduit
        self.heard: list[Statement] = []

    def run(self, request: Any, asked: Callable[[Any], tuple[str, Sequence[object]]]) -> object:
        """Do one request and return its reply."""
        if request.action != "purge":  # once in 100 keys
            text, values = asked(request)
            self.heard.append(Statement(text, tuple(values)))
        return self._conduit.run(request, asked)

    def close(self) -> None:
        """Close them."""
        self._conduit.close()


def recorded(url: str, batch: int) -> dict[str, list[Statement]]:
    """Return the statements of each case. On a busy machine a batch may record its ends in parts; then it is tried again."""
    for _ in range(20):
        cases = _recorded(url, batch)
        if all(type(one.values[1]) is list and len(one.values[1]) == batch for one in cases["batch"]):
            return cases
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("TRUNCATE onceward")
    sys.exit("this machine is too busy for a benchmark")


def _recorded(url: str, batch: int) -> dict[str, list[Statement]]:
    once = Once(url, name="stores.handle")
    guarded = once(key="order.id")(handle)
    batches = once.batch(handle, key="order.id")
    guarded({"id": "the first use makes the tables"})
    recorder = once.store.conduit = Recorder(once.store.conduit)  # type: ignore[attr-defined]
    first, failing, many = {"id": FIRST}, {"id": FAILING}, orders(NAME, batch)
    runs = (
        lambda: guarded(first),
        lambda: guarded(first),
        lambda: guarded(failing | {"fail": "yes"}),
        lambda: guarded(failing),
        lambda: batches.run(many),
        lambda: batches.run(many),
    )
    cases: dict[str, list[Statement]] = {}
    for case, run in zip(CASES, runs, strict=True):
        recorder.heard = []
        with contextlib.suppress(Boom):
            run()
        cases[case] = recorder.heard
    once.close()
    return cases


class Slots(NamedTuple):
    """A statement, and which of its values are keys and fences."""

    text: str
    values: list[Any]
    keys: list[int]
    fences: list[int]

    @classmethod
    def of(cls, one: Statement) -> "Slots":
        """Return those of a statement; the columns of a batch are told by their first values."""
        first = [value[0] if type(value) is list else value for value in one.values]
        keys = [at for at, value in enumerate(first) if type(value) is str and NAME in value]
        return cls(one.text, list(one.values), keys, one.fences)


class Replay:
    """The statements of each case, for keys of the caller's.

    Its steps are a generator that yields a statement's text and values, and is sent the rows.
    """

    def __init__(self, cases: dict[str, list[Statement]]) -> None:
        self._cases = {case: [Slots.of(one) for one in statements] for case, statements in cases.items()}
        self._fences: dict[str, int] = {}

    def one(self, case: str, order: Order) -> Steps:
        """Run one call."""
        key = f"stores.handle:{order['id']}"
        fence = self._fences.get(key, 0)
        for text, template, keys, fences in self._cases[case]:
            values = template.copy()
            for at in keys:
                values[at] = key
            for at in fences:
                values[at] = fence
            rows = yield text, values
            fence = rows[0][FENCE]
        self._fences[key] = fence

    def batch(self, case: str, batch: list[Order]) -> Steps:
        """Run one batch."""
        all_ = [f"stores.handle:{order['id']}" for order in batch]
        seen: dict[str, int] = {}
        for text, template, keys, fences in self._cases[case]:
            values = template.copy()
            for at in keys:
                values[at] = all_
            for at in fences:
                values[at] = [seen[key] for key in all_]
            rows = yield text, values
            seen = {row[KEY]: row[FENCE] for row in rows}

    def steps(self, case: str, some: list[Order]) -> Steps:
        """Run calls one after the other, or one batch."""
        if case.startswith("batch"):
            yield from self.batch(case, some)
        else:
            for order in some:
                yield from self.one(case, order)


def drive(steps: Steps, cursor: Any) -> None:
    """Run steps on a cursor of psycopg."""
    with contextlib.suppress(StopIteration):
        asked = next(steps)
        while True:
            asked = steps.send(cursor.execute(*asked).fetchall())


async def drive_async(steps: Steps, cursor: Any) -> None:
    """Run steps on a cursor of psycopg's."""
    with contextlib.suppress(StopIteration):
        asked = next(steps)
        while True:
            await cursor.execute(*asked)
            asked = steps.send(await cursor.fetchall())


async def drive_asyncpg(steps: Steps, connection: Any) -> None:
    """Run steps on a connection of asyncpg's."""
    with contextlib.suppress(StopIteration):
        text, values = next(steps)
        while True:
            text, values = steps.send(await connection.fetch(text, *values))

"""A worker at a ledger in DynamoDB whose requests meet faults: what it does, and what must be true when it went well."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest

from onceward import Completed, Once, StoreError
from onceward.core import retries
from onceward.core.clock import boottime
from onceward.core.drivers import drive, drive_async
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.dynamodb import open_table
from onceward.testing.bench import claim_of
from onceward.testing.clock import ManualClock
from onceward.wire.wires import Wires, opened
from servers.needs import numbers
from stores.ledgers import counting

NUMBERS = numbers()
LEASE = 10.0
MEMBERS = 27  # of a batch, of which every ninth is somebody else's; a request takes 25


class Desk:
    """One worker on a fresh key, sync or async, and the means to look at what it left behind."""

    def __init__(self, bench, mode: str) -> None:
        self.mode, self.proxy, self.clock, self.money = mode, bench.proxy, bench.clock, bench.money
        self.server, self.table, self.other = bench.server, bench.table, bench.other
        self.once, self._loop = bench.onces[mode], bench.loop
        self.key = f"k{next(NUMBERS)}"
        self.runs = 0

    def run(self, function, *args):
        """Guard a handler; in async mode it is a coroutine function."""
        once = self.once.using(name="n")
        if self.mode == "sync":
            return once.run(self.key, function, *args)

        async def handler(*args):
            return function(*args)

        return self._loop.run_until_complete(once.run_async(self.key, handler, *args))

    def do(self, thing, verb: str, *args, **options):
        """Call ``verb``, or in async mode await its other form."""
        if self.mode == "sync":
            return getattr(thing, verb)(*args, **options)
        return self._loop.run_until_complete(getattr(thing, f"{verb}_async")(*args, **options))

    def drive(self, of: Callable):
        """Drive the steps that ``of(store)`` makes, as often as it takes."""
        store = self.once.store

        def persistent():
            sent = self.clock()
            try:
                return (yield from of(store))
            except StoreError as error:
                return (yield from retries.retry_transient(lambda: of(store), self.clock, lambda: sent + 5, error))

        if self.mode == "sync":
            return drive(persistent(), store)
        return self._loop.run_until_complete(drive_async(persistent(), store))

    def acquire(self, once=None, **options):
        return self.do(self.once if once is None else once, "acquire", self.key, name="n", **options)

    def handler(self):
        self.runs += 1
        return {"run": self.runs}

    def record(self, key: str | None = None):
        got = self.server.ask("GetItem", TableName=self.table, Key={"key": {"S": f"n:{key or self.key}"}})
        return self.other.store.layout.record(got["Item"]) if "Item" in got else None

    def spent(self) -> int:
        got = self.server.ask("GetItem", TableName=self.money, Key={"id": {"S": self.key}})
        return int(got["Item"]["n"]["N"]) if "Item" in got else 0

    def effect(self):
        return {"Update": counting(self.money, self.key)}

    def records(self):
        """Return all records of this desk's key, or of a batch's, by their keys."""
        names = [self.key, *keys(self)]
        wanted = {self.table: {"Keys": [{"key": {"S": f"n:{name}"}} for name in names]}}
        found = self.server.ask("BatchGetItem", RequestItems=wanted)["Responses"][self.table]
        records = map(self.other.store.layout.record, found)
        return {record.key.removeprefix("n:"): record for record in records}

    def left_behind(self):
        return self.records(), self.spent()

    def stands(self, status, *, attempts=1, result=None):
        held = self.record()
        assert (held.status, held.attempts, held.result) == (status, attempts, result)
        return held

    def answers(self, value):
        """A duplicate of somebody else gets the recorded result."""
        with pytest.raises(Completed) as caught:
            self.other.acquire(self.key, name="n")
        assert caught.value.result == value


class Bench:
    """One server, one ledger, one clock that all share, and the loop of the async worker."""

    def __init__(self, proxy, server, table) -> None:
        self.proxy, self.server, self.table = proxy, server, table
        self.clock = ManualClock()
        proxy.date = self.clock
        self.money = server.table(f"money-of-{table}", {"id": "S"})
        self.loop = asyncio.new_event_loop()
        self.onces = {mode: self.opened(proxy.url) for mode in ("sync", "async")}
        self.onces["sync"].acquire("warm")  # it has seen an answer
        self.loop.run_until_complete(self.onces["async"].acquire_async("warm too"))
        self.other = self.opened(proxy.url)

    def opened(self, url):
        return Once(open_table(self.table, endpoint=url, clock=self.clock), clock=self.clock, lease=LEASE)


def plain_wires(url, clock=boottime) -> Wires:
    """Return the wires of a store that reaches a test's server."""
    return opened("eu-west-1", timeout=30.0, clock=clock, dynamodb=url, s3=None)


class Case(NamedTuple):
    """What is there before; what is done under faults; and what must be true when it went well."""

    before: Callable[[Desk], object]
    act: Callable[[Desk, object], object]
    after: Callable[[Desk, object], None]


def first(desk):
    return None


def run(desk, _):
    return desk.run(desk.handler)


def ran_once(desk, value):
    assert value == {"run": 1}
    assert desk.runs == 1
    desk.stands(COMPLETED, result='{"run":1}')
    desk.answers({"run": 1})


def lapsed(desk):
    desk.other.acquire(desk.key, name="n")
    fence = desk.record().fence
    desk.clock.advance(LEASE + 3)
    return fence


def taken_over(desk, _):
    assert desk.runs == 1
    desk.stands(COMPLETED, attempts=2, result='{"run":1}')
    desk.answers({"run": 1})


class Declined(Exception):
    pass


def failing(desk, _):
    def handler():
        desk.runs += 1
        raise Declined("card")

    with pytest.raises(Declined, match="card"):
        desk.run(handler)


def gave_back(desk, _):
    assert desk.runs == 1
    assert desk.stands(RELEASED).error.endswith("Declined: card")


def held(desk):
    return desk.acquire()


def extend(desk, claim):
    desk.do(claim, "extend")
    return claim


def extended(desk, claim):
    stands = desk.stands(IN_PROGRESS)
    assert not claim.lost
    assert claim.remaining <= stands.lease_until - desk.clock()
    desk.do(claim, "complete", 5)
    desk.stands(COMPLETED, result="5")


def paid(desk, value):
    assert value == "paid"
    assert desk.spent() == 1
    assert desk.record().status == COMPLETED
    assert desk.do(desk.once, "transact", desk.key, [desk.effect()], "again", name="n") == "paid"
    assert desk.spent() == 1


def transact(desk, _):
    return desk.do(desk.once, "transact", desk.key, [desk.effect()], "paid", name="n")


def transact_in_claim(desk, claim):
    return desk.do(claim, "transact", [desk.effect()], "paid")


def keys(desk, count=MEMBERS):
    return [f"{desk.key}-{n}" for n in range(count)]


def some_taken(desk):
    drive(desk.other.store.insert_many([claim_of(f"n:{key}", "theirs") for key in keys(desk)[::9]]), desk.other.store)


def claim_many(desk, _):
    writes = [claim_of(f"n:{key}", f"mine{desk.key}") for key in keys(desk)]
    return desk.drive(lambda store: until_answered(store, writes))


def until_answered(store, writes):
    """Ask a few times for those that fail for a time, as the steps of a batch do."""
    replies = yield from store.insert_many(writes)
    for _ in range(3):
        todo = [n for n, reply in enumerate(replies) if getattr(reply, "transient", False)]
        again = (yield from store.insert_many([writes[n] for n in todo])) if todo else []
        for n, reply in zip(todo, again, strict=True):
            replies[n] = reply
    return replies


def each_has_one_owner(desk, replies):
    records = desk.records()
    for number, (key, reply) in enumerate(zip(keys(desk), replies, strict=True)):
        assert reply.record == records[key]
        assert reply.record.owner == ("theirs" if number % 9 == 0 else f"mine{desk.key}")
        assert reply.record.attempts == 1


CASES = {
    "a first call": Case(first, run, ran_once),
    "a takeover": Case(lapsed, run, taken_over),
    "a failed handler": Case(first, failing, gave_back),
    "a renewal": Case(held, extend, extended),
    "a transaction": Case(first, transact, paid),
    "a claim's transaction": Case(held, transact_in_claim, paid),
    "a batch of claims": Case(some_taken, claim_many, each_has_one_owner),
}

"""What goes wrong between an actor and its store."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait

from onceward import StoreError
from onceward.stores.contract import Store
from servers import wires
from servers.orphans import die_with
from servers.proxy import Fault, Proxy, Refuse, Seen
from torture.facts import Journal, now
from torture.plan import Plan

FAULTS = (Fault(lose_request=True), Fault(lose_reply=True), Fault(lose_reply=True), Fault(reset_reply=True))
FAULTS += (Fault(twice=True), Fault(late=3), Fault(delay_reply=0.5))
FAULTS += (Refuse("ProvisionedThroughputExceededException"), Refuse("InternalServerError", 500))


def faulty_proxy(plan: Plan, port: int, journal: Journal) -> Proxy:
    """Return a proxy in front of DynamoDB that fails as the plan says; what it does to a request is a matter of its number."""
    proxy, began, here = Proxy(port), now(), threading.local()

    def rule(seen: Seen) -> Fault | Refuse | None:
        chance = random.Random(plan.seed * 1_000_003 + seen.number)
        here.ahead = chance.choice((-plan.dates, 0.0, plan.dates))
        if plan.outage is not None and plan.outage[0] <= now() - began < plan.outage[1]:
            journal("wire", fault="outage", action=seen.action)
            return Fault(lose_request=True)
        if chance.random() >= plan.loss:
            return None
        fault = chance.choice(FAULTS)
        journal("wire", fault=repr(fault), action=seen.action)
        return fault

    proxy.rule = rule
    proxy.tolerance = 300.0
    if plan.dates:
        proxy.date = lambda: time.time() + getattr(here, "ahead", 0.0)
    return proxy


class Front:
    def __init__(self, begin: Callable[[], int]) -> None:
        """Start it; ``begin`` returns its port."""
        reading, writing = os.pipe()
        parent = os.getpid()
        self._process = os.fork()
        if not self._process:
            with suppress(BaseException):
                die_with(parent)
                os.close(reading)
                os.write(writing, str(begin()).encode())
                while True:
                    signal.pause()
            os._exit(0)
        os.close(writing)
        wait([reading], 10)
        self.port = int(os.read(reading, 16))
        os.close(reading)

    def stop(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


LOST = (
    wires.Fault(lose_request=True),
    wires.Fault(lose_request=True, linger=1.5),  # its transaction stays open, and holds its keys
    wires.Fault(lose_reply=True),
    wires.Fault(lose_reply=True),
    wires.Fault(lose_reply=True, linger=1.5),
    wires.Fault(half_reply=True),
    wires.Fault(late=0.05),
    wires.Fault(late=0.5),
    wires.Fault(delay=0.5),
    wires.Fault(freeze=3.0),  # a driver's connection has no limit of its own
)


def faulty_sql(kind: type[wires.Wire], plan: Plan, port: int, journal: Journal) -> wires.Wire:
    """Return a wire in front of a database server that fails as the plan says."""
    made = kind(port)
    began = now()

    def rule(asked: wires.Asked) -> wires.Fault | None:
        chance = random.Random(plan.seed * 1_000_003 + asked.number)
        fault = chance.choice(LOST) if chance.random() < plan.loss else None
        if plan.outage is not None and plan.outage[0] <= now() - began < plan.outage[1]:
            fault = wires.Fault(lose_request=True)
        if fault is not None:
            journal("wire", fault=repr(fault), action=repr(asked.content[:40]))
        return fault

    made.rule = rule
    return made


def lose_replies(store: Store, plan: Plan, journal: Journal, salt: int) -> None:
    """Lose requests and replies of a store in this process: its exchanges fail before or after they are made."""
    if not plan.loss:
        return
    count = 0
    exchange, exchange_async = store.exchange, store.exchange_async

    def drawn() -> str | None:
        nonlocal count
        count += 1
        chance = random.Random(plan.seed * 1_000_003 + salt * 10_007 + count)
        if chance.random() >= plan.loss:
            return None
        journal("wire", fault=(fault := chance.choice(("request", "reply", "reply"))))
        return fault

    def failing(request: object) -> object:
        fault = drawn()
        if fault == "request":
            raise _lost()
        reply = exchange(request)
        if fault == "reply":
            raise _lost()
        return reply

    async def failing_async(request: object) -> object:
        fault = drawn()
        if fault == "request":
            raise _lost()
        reply = await exchange_async(request)
        if fault == "reply":
            raise _lost()
        return reply

    store.exchange, store.exchange_async = failing, failing_async  # type: ignore[method-assign]


def _lost() -> StoreError:
    return StoreError("lost by the torture campaign", transient=True)

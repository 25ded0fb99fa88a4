"""What goes wrong between an actor and its store."""

import random
import threading
import time
from collections.abc import Callable

from onceward import StoreError
from onceward.stores.contract import Store
from servers import Fault, Proxy, Refuse, Seen
from torture.journal import Journal, now
from torture.plan import Plan

FAULTS = (
    Fault(lose_request=True),
    Fault(lose_reply=True),
    Fault(lose_reply=True),
    Fault(reset_reply=True),
    Fault(twice=True),
    Fault(late=3),
    Fault(delay_reply=0.5),
    Refuse("ProvisionedThroughputExceededException"),
    Refuse("InternalServerError", 500),
)


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
        return _either(drawn(), lambda: exchange(request))

    async def failing_async(request: object) -> object:
        fault = drawn()
        if fault == "request":
            raise _lost()
        reply = await exchange_async(request)
        if fault == "reply":
            raise _lost()
        return reply

    store.exchange, store.exchange_async = failing, failing_async  # type: ignore[method-assign]


def _either(fault: str | None, make: Callable[[], object]) -> object:
    if fault == "request":
        raise _lost()
    reply = make()
    if fault == "reply":
        raise _lost()
    return reply


def _lost() -> StoreError:
    return StoreError("lost by the torture campaign", transient=True)

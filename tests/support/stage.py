"""A ledger in memory behind faults, whose steps a test drives by hand."""

import asyncio

from faults.injected import Faults, at
from onceward import Once
from onceward.core import steps
from onceward.core.drivers import Sleep
from onceward.core.policy import Policy
from onceward.core.record import IN_PROGRESS, Record
from onceward.core.steps import Bid
from onceward.stores.memory import MemoryStore
from onceward.testing import ManualClock
from onceward.testing.bench import claim_of

NOW = 1_000_000.0
LEASE = 60.0
PLAIN = Policy(lease=LEASE)


def record(status=IN_PROGRESS, **changes) -> Record:
    made = claim_of("k", "theirs", status=status, fence=7, beat=3).at(NOW - 30.0)
    return made._replace(lease_until=NOW + 30.0, expires_at=NOW + 900.0)._replace(**changes)


class Stage:
    """A memory store behind faults, on a clock moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.store = Faults(self.memory, lambda ask: None)
        self.runs = []

    def once(self, **options) -> Once:
        options.setdefault("lease", LEASE)
        return Once(self.store, name="n", clock=self.clock, **options)

    def plan(self, plan) -> None:
        self.store.plan = plan

    def fail_next(self, *faults) -> None:
        first = len(self.store.asked) + 1
        self.plan(at(dict(enumerate(faults, first))))

    @property
    def record(self) -> Record:
        (found,) = self.memory.records.values()
        return found

    def handler(self, value="result", error=None):
        def handle():
            self.runs.append(value)
            if error is not None:
                raise error
            return value

        handle.__qualname__ = "handle"
        return handle

    def drive(self, steps, between=None):
        """Drive by hand, time passing instead of sleeping; ``between(n)`` runs before the n-th exchange."""
        number = 0
        try:
            request = next(steps)
            while True:
                if isinstance(request, Sleep):
                    self.clock.advance(request.seconds)
                    request = steps.send(None)
                    continue
                number += 1
                if between:
                    between(number)
                try:
                    reply = self.store.exchange(request)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(reply)
        except StopIteration as end:
            return end.value

    def claim(self, owner="a", policy=PLAIN, fingerprint=None):
        return self.drive(steps.claim(self.store, Bid("k", owner, fingerprint, policy, self.clock)))

    def end(self, record, outcome, policy=PLAIN, seconds=LEASE):
        limit = self.clock() + seconds
        return self.drive(steps.end(self.store, record, outcome, policy, clock=self.clock, until=lambda: limit))

    def beat(self, record, policy=PLAIN):
        (outcome,) = self.drive(steps.heartbeat(self.store, [(record, LEASE)], [policy], self.clock))
        return outcome


class Both:
    """The sync and the async face of Once, as one."""

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    def run(self, once: Once, key, handler):
        if not self.is_async:
            return once.run(key, handler)

        async def handle():
            return handler()

        handle.__qualname__ = handler.__qualname__
        return asyncio.run(once.run_async(key, handle))

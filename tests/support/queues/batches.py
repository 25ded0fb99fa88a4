"""Small batches for tests, and what became of them."""

import asyncio
import gc

from onceward.batch.batch import Batch
from onceward.claim.heartbeat import HEARTBEAT
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore

PATIENCE = 60  # seconds after which something hangs


def orders(*names):
    return [{"id": name} for name in names]


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


def standing(once, key):
    return once.ledger.show(f"b:{key}")[0]


def batch_of(once, function, **options):
    return once.batch(function, **{"key": "order.id", "name": "b", **options})


def within_patience(work):
    """Run a coroutine in a new event loop; it fails when it hangs."""

    async def main():
        return await asyncio.wait_for(work, PATIENCE)

    return asyncio.run(main())


class Slow(MemoryStore):
    """A ledger whose answers take two turns of the event loop: one before the request is carried out, one after."""

    async def exchange_async(self, request):
        await asyncio.sleep(0)
        reply = self.exchange(request)
        await asyncio.sleep(0)
        return reply


def settled_rightly(once, began, ended, keys):
    """Assert that what ended is completed, and nothing else; and that what never began is free."""
    for key in keys:
        record = once.store.records.get(f"b:{key}")
        status = None if record is None else record.status
        if key in ended:
            assert status == COMPLETED, key
        elif key in began:
            assert status == IN_PROGRESS, key
        else:
            assert status in {None, RELEASED}, key
            assert record is None or record.attempts == 0


def renewed(store):
    """Return the claims on a store that the heartbeat still renews. What only waits to be collected is none of them."""

    def found():
        return [claim for weak in HEARTBEAT.claims.values() if (claim := weak()) is not None and claim.store is store]

    if not found():
        return []
    gc.collect()
    return found()


FORMS = ("blocking", "threads", "tasks", "tasks over threads")


class Form:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.concurrency = 1 if kind == "blocking" else 4

    def batch(self, once, function, **options) -> Batch:
        if self.kind == "tasks":
            plain = function

            async def function(order):
                await asyncio.sleep(0)
                return plain(order)

        options = {"key": "order.id", "name": "b", "concurrency": self.concurrency} | options
        return once.batch(function, **options)

    def run(self, batch, records, **options):
        if self.kind in {"blocking", "threads"}:
            return batch.run(records, **options)
        return asyncio.run(batch.run_async(records, **options))


def never(order):
    raise AssertionError(f"{order} ran again")


def called(once, form, function, keys=("k",)):
    """Call a function under a guard of this form, and return what it is answered, or raises."""
    if form == "run":
        return once.run("k", function)
    if form == "run_async":
        return asyncio.run(once.run_async("k", function))
    if form == "complete":
        with once.claim("k", name="n") as claim:
            return claim.complete(function())
    if form == "checkpoint":
        with once.checkpoint(lambda items: function(), key=str, name="n") as sink:
            return [sink.add(key) for key in keys] and None
    outcome = once.batch(function, key="key", name="n").run(list(keys))[0]
    if outcome.error is not None:
        raise outcome.error
    return outcome.value

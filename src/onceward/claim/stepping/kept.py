"""Large results of steps: each is in a completed record of its own, which is fetched only for an attempt that asks for it.

Its key has the fence of the claim that made it. So a worker that has lost its claim overwrites no result of its successor.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core import protocol, steps
from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.retries import patience, retry_transient
from onceward.core.steps import Bid, Effect, Settled
from onceward.errors import ResultUnavailable, StoreError
from onceward.keys.ledger_keys import kept_key
from onceward.results.step_entries import Entry

if TYPE_CHECKING:
    from onceward.claim.lease import Lease

# Seconds that such a record stays longer: a key can be retried long after its step. One that keeps its input waits for a
# completer without an end. But nobody deletes this record after the completion, so it must expire.
_LONGER: Final = 30 * 86400.0
_WITH_INPUT: Final = 366 * 86400.0


def keep(claim: "Lease", name: str, text: str, until: Callable[[], float]) -> Steps[None]:
    """Record a step's result. It can be repeated."""
    store, policy = claim.store, claim.policy
    more = _LONGER if claim.record.input is None else _WITH_INPUT
    longer = policy._replace(retention=None if policy.retention is None else policy.retention + more)
    bid = Bid(kept_key(claim.record.key, name, claim.fence), claim.record.owner, None, longer, claim.clock)

    def put(write: Write, seen: Record | None) -> Steps[Reply]:
        return store.insert(write) if seen is None else store.swap(write, seen)

    effect = Effect(protocol.completed(text), put)
    outcome = yield from retry_transient(lambda: steps.claim(store, bid, effect), claim.clock, until)
    if not isinstance(outcome, Settled):
        text = "another record is in the place of a step's result: look with onceward show, and clear a foreign record"
        raise StoreError(f"{bid.key}: {text}")
    if outcome.record.result is None:  # the store has no room for it
        raise StoreError(f"{outcome.record.error}")


def fetch(claim: "Lease", entry: Entry) -> Steps[str | None]:
    """Return the recorded text of a step's result; None if none was stored.

    Raises:
        ResultUnavailable: it is gone.
        StoreError: the store was unreachable.
    """
    if not entry.kept:
        return entry.text
    key = kept_key(claim.record.key, entry.name, entry.kept)
    clock = claim.clock
    reply = yield from retry_transient(partial(claim.store.load, key), clock, patience(clock))
    if reply.record is None:
        raise ResultUnavailable(key, "this record is gone")
    return (yield from steps.fetch_result(reply.record, clock)).result

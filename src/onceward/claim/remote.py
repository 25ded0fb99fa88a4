"""Claims whose owner is elsewhere, such as a client of the service: each of its requests makes one from the record.

The owner counts its lease itself, and repeats a request whose answer was lost. So nothing here renews a claim by itself, and a
store that is away does not cost a result: the owner asks again.
"""

from functools import partial
from typing import TYPE_CHECKING

from onceward.claim.called import Call
from onceward.claim.held import HeldClaim
from onceward.core import recovery, steps
from onceward.core.belief import belief
from onceward.core.drivers import Steps, drive_async
from onceward.core.record import Record
from onceward.core.retries import patience, retry_transient
from onceward.core.steps import Bid, Refused, Replay, Won
from onceward.core.writes import retention_of, waits
from onceward.errors import LeaseLost, OncewardError
from onceward.results.outcomes import without_result
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from onceward.claim.guard import Guard
    from onceward.claim.stepping.handler_steps import HandlerSteps


class RemoteClaim(HeldClaim):
    """A claim for the time of one request."""

    is_alone = False  # each request of its owner makes one

    @property
    def handler_steps(self) -> "HandlerSteps":
        """The steps of its handler."""
        return self._chained()

    def completing(self, call: Call) -> Steps[None]:
        """Record a completion. Only a result that the store refuses for good is left out."""
        outcome = self.outcome_of(call)
        end = self._end(outcome)
        try:
            ended = yield from end
        except OncewardError as error:
            if outcome.result is None or getattr(error, "transient", False):
                raise
            outcome = without_result(error)
            ended = yield from self._end(outcome)
        self.ended(ended, outcome, "record its result")


def for_owner(guard: "Guard", owner: str) -> "Guard":
    """Return a guard whose one claim has this owner id, which its client made for it."""
    return guard.claiming_by(partial(_claim, owner), recovery.leave)


def _claim(owner: str, store: Store, bid: Bid) -> Steps[Won | Replay | Refused]:
    return steps.claim(store, bid._replace(owner=owner), single_use=True)


async def remote_claim(
    guard: "Guard", key: str, owner: str, fence: int, *, lease: float | None = None, doing: str
) -> RemoteClaim:
    """Return the claim of ``owner`` as the ledger has it. It can be one that has ended: then it ends the same way again, or is lost.

    Args:
        guard: of its namespace.
        key: the key in the ledger.
        owner: its owner id.
        fence: its fence. An earlier claim of the same owner has another one.
        lease: seconds to renew it for; None is the guard's.
        doing: what it is for, in the words of an error.

    Raises:
        LeaseLost: the key has gone on without it.
        StoreError: the ledger cannot be reached.
    """
    store, clock = guard.store, guard.clock
    sent = clock()
    reply = await drive_async(retry_transient(partial(store.load, key), clock, patience(clock)), store)
    record: Record | None = reply.record
    if record is None or record.owner != owner or record.fence != fence:
        raise LeaseLost(key, doing)
    policy = guard.policy._replace(lease=lease or guard.policy.lease, retention=retention_of(record))
    if waits(record):
        policy = policy._replace(on_lapse="park")
    remaining = max(0.0, record.lease_until - reply.now)
    longest = policy._replace(
        lease=max(policy.lease, remaining)
    )  # the margin is a part of the lease that the record has
    won = Won(record, belief(store, longest, sent, reply, record, lease=remaining))
    asked_at = sent if guard.observers.are_listening() else None
    return RemoteClaim(store, won, policy, clock, guard.codec, guard.observers, asked_at)

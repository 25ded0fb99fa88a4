"""Claim, effect and completion together: in a transaction that claims the key itself, or in one write of the ledger.

If a transaction does not commit, its claim is gone with it.
"""

import os
from collections.abc import Callable
from typing import TypeVar

from onceward.claim.ends import EndingClaim
from onceward.claim.guard import Guard
from onceward.claim.joined import ENDED, apart
from onceward.claim.replays import refusal
from onceward.claim.transaction import RecordTransaction
from onceward.core import protocol, retries, steps
from onceward.core.drivers import Steps
from onceward.core.record import Record
from onceward.core.register import KeyLocked
from onceward.core.steps import Bid, Refused, Replay, Settled, Won
from onceward.errors import Completed
from onceward.observe.events import Event, about
from onceward.results.outcomes import completion, describe, noted, warn_of_missing

C = TypeVar("C")


class KeyTransaction(RecordTransaction[C]):
    """A transaction of claim, effect and completion."""

    _bid: Bid
    _claimed: Record  # as the claim was made

    def __init__(self, guard: Guard, key: str, connection: C) -> None:
        super().__init__(guard.store, key, connection)
        self._guard = guard
        self._events: list[Event] = []  # told after the transaction, as are those of the claims

    def _begin(self) -> Steps[None]:
        # Do not wait for a busy key: a transaction must not stay open that long, and in a file no other run can end meanwhile.
        guard, policy = self._guard, self._guard.policy
        policy = policy._replace(on_busy="raise") if policy.wait else policy
        self._bid, listening, since, span = guard.asked(self._key, None, policy=policy)
        self._opening()
        try:
            yield from self.session.begin()
            outcome = yield from steps.claim(self._store, self._bid)
        except BaseException as error:
            if span is not None:
                span.end(error)
            raise
        self._events = guard.events_of(outcome, since, span) if listening or isinstance(outcome, Refused) else []
        if isinstance(outcome, Replay) and outcome.is_due:
            guard.send_due(outcome.record)
        if not isinstance(outcome, Won):
            if span is not None:
                span.end()
            if isinstance(outcome, Refused):
                raise refusal(outcome, policy)
            raise Completed(self._key, guard.replays.recorded(outcome.record))
        self.held = held = guard.held(outcome, policy, since, listening=listening, span=span)
        self._claimed = held.record
        # Nothing to undo: no guard ends the claim, and a reference to the transaction would delay its __del__.
        held.paused, held.exclusive = lambda: None, self.session.exclusive

    def _resume(self, held: EndingClaim) -> None:
        held.let_go()  # it was made in the transaction, and rolled back with it

    def _forget(self) -> None:
        """Note also that nothing runs under its claim any more."""
        super()._forget()
        if self.held is not None:
            self.held.left = True

    def _tell(self) -> None:
        events, self._events = self._events, []
        self._guard.observers.tell(*events)
        super()._tell()

    # --- what follows when nothing was committed --------------------------------------------------------------------

    def _failed(self, error: BaseException) -> Steps[None]:
        """Count the attempt. The effect is undone, so after an interrupt the key needs no record."""
        held = self._held
        held.reopened(self._claimed)
        if not isinstance(error, Exception):
            return
        bid, clock = self._other_bid(), held.clock
        again = lambda: self._again(bid, lambda claim: claim.failing(error))
        try:
            outcome = yield from retries.retry_transient(again, clock, retries.patience(clock))
        except Exception as trouble:  # the body's own exception goes on, with a note
            error.add_note(f"onceward: and then {trouble}")
            return
        if self._has_left(outcome):  # only the body can have committed this claim
            yield from self._refuse_ended(error)

    def _park(self) -> Steps[None]:
        """Claim the key again, if the body has not committed its claim, and park it."""
        self._held.reopened(self._claimed)
        yield from self._again(self._bid, lambda claim: claim.leaving(protocol.parked(ENDED), "park it"))

    def _was_committed(self, error: BaseException) -> Steps[bool]:
        """Claim the key again: that waits for the transaction, and fails if it was committed."""

        def ending(claim: EndingClaim) -> Steps[None]:
            if isinstance(error, Exception):
                return claim.failing(error)
            return claim.leaving(protocol.released(noted(describe(error), claim.policy)), "give it back")

        held, committed, bid = self._held, False, self._other_bid()
        try:
            outcome = yield from self._ask_again(lambda: self._again(bid, ending), error)
            committed = isinstance(outcome, Replay) and self._has_left(outcome)
            if committed:
                held.record = outcome.record  # with its times, which came with the lost reply
        finally:
            if not committed:
                held.reopened(self._claimed)
        if not committed and self._has_left(outcome):
            yield from self._refuse_ended(error)
        return committed

    def _other_bid(self) -> Bid:
        """Return a bid of another owner, which tells its claim from the transaction's."""
        return self._bid._replace(owner=os.urandom(16).hex())

    def _has_left(self, outcome: Won | Replay | Refused) -> bool:
        """Return whether ``outcome`` is a record that the transaction's own claim has left."""
        return not isinstance(outcome, Won) and outcome.record.owner == self._bid.owner

    def _again(self, bid: Bid, ending: Callable[[EndingClaim], Steps[None]]) -> Steps[Won | Replay | Refused]:
        """Claim the key again, and end it with ``ending(claim)``."""
        outcome = yield from apart(steps.claim(self._store, bid, value=False))
        if isinstance(outcome, Refused) and not outcome.record.owner:  # nobody's: the lost transaction locks the row
            raise KeyLocked(f"{bid.key}: an open transaction still holds the key")
        if isinstance(outcome, Won):
            first = self._held.story
            claim = self._guard.held(outcome, bid.policy, 0.0, listening=first is not None)
            if claim.story is not None and first is not None:
                claim.story.began, claim.story.since = first.began, first.since
                claim.story.span, first.span = first.span, None
            yield from apart(ending(claim))
            self.others.append(claim)
        return outcome


def commit(guard: Guard, key: str, result: object, write: steps.Commit) -> Steps[object]:
    """Make claim, effect and completion in one write. Return ``result``, or what was recorded before."""
    bid, listening, since, span = guard.asked(key, None)
    try:
        effect = steps.Effect(completion(guard.codec, guard.policy, result), write)
        outcome = yield from steps.claim(guard.store, bid, effect)
    except BaseException as error:
        if span is not None:
            span.end(error)
        raise
    # No request follows: observers may use the ledger.
    if not isinstance(outcome, Settled):
        return guard.answer(outcome, since, listening=listening, span=span).value
    if listening:
        took = guard.clock() - since
        event = about("completed", outcome.record, waited=took, took=took)
        if span is not None:
            span.note(event)
            span.end()
        guard.observers.tell(event)
    warn_of_missing(outcome.record, 5)
    return result

"""A transaction of claim, effect and completion: it claims the key itself."""

import os
from collections.abc import Callable
from typing import TypeVar

from onceward.claim.aftermath import ENDED, apart, ask_again, ended_by_body
from onceward.claim.ends import EndingClaim
from onceward.claim.guard import Guard
from onceward.claim.joined import Joined
from onceward.claim.transaction import RecordTransaction
from onceward.core import protocol, retries, steps
from onceward.core.drivers import Steps
from onceward.core.register import KeyLocked
from onceward.core.steps import Bid, Refused, Replay, Won
from onceward.errors import Completed
from onceward.observe.events import Event
from onceward.results.outcomes import describe, noted
from onceward.stores.capabilities import Session

C = TypeVar("C")


class KeyTransaction(RecordTransaction[C]):
    """A transaction of claim, effect and completion."""

    def __init__(self, guard: Guard, key: str, connection: C) -> None:
        super().__init__(guard.store, key, connection)
        self._guard = guard

    def _join_record(self, session: Session) -> Joined:
        return JoinedKey(session, id(self.connection), self._guard, self._key)


class JoinedKey(Joined):
    """A transaction, and the record of the claim that is made in it."""

    def __init__(self, session: Session, place: int, guard: Guard, key: str) -> None:
        # Nothing to undo: no guard ends the claim, and a reference to the transaction would delay its __del__.
        super().__init__(session, place, guard.store, key, None, lambda: None)
        self._guard = guard
        self._events: list[Event] = []  # told after the transaction, as are those of the claims

    def _begin(self) -> Steps[None]:
        # Do not wait for a busy key: a transaction must not stay open that long, and in a file no other run can end meanwhile.
        policy = self._guard.policy
        bid = self._guard.bid(self._key, None, policy=policy._replace(on_busy="raise") if policy.wait else policy)
        self._opening()
        yield from self.session.begin()
        yield from self._claim(self._guard, bid)

    def _claim(self, guard: Guard, bid: Bid) -> Steps[None]:
        listening, since = guard.observers.are_listening(), bid.clock()
        span = guard.observers.begin(guard.name, bid.key) if listening else None
        if span is not None:
            bid = span.on(bid)
        try:
            outcome = yield from steps.claim(self._store, bid)
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
            raise Completed(self._key, guard.replays.answer(outcome, bid.clock()).value)
        self.held = held = guard.held(outcome, bid.policy, since, listening=listening, span=span)
        self._after = OfKey(guard, bid, held)
        held.paused, held.exclusive = self._undo, self.session.exclusive

    def _resume(self, held: EndingClaim) -> None:
        held.let_go()  # it was made in the transaction, and rolled back with it

    def forget(self) -> None:
        """Note also that nothing runs under its claim any more."""
        super().forget()
        if self.held is not None:
            self.held.left = True

    @property
    def stands(self) -> bool:
        """Whether no claim was made and rolled back."""
        return self.held is None

    def tell(self) -> None:
        """Tell observers what has happened."""
        events, self._events = self._events, []
        self._guard.observers.tell(*events)
        super().tell()


class OfKey:
    """For a claim that was made in the transaction, and is gone with it."""

    def __init__(self, guard: Guard, bid: Bid, claim: EndingClaim) -> None:
        self._guard = guard
        self._bid = bid
        self._claim = claim
        self._claimed = claim.record
        self.ended: list[EndingClaim] = []

    def failed(self, error: BaseException) -> Steps[None]:
        """Count the attempt. The effect is undone, so after an interrupt the key needs no record."""
        self._claim.reopened(self._claimed)
        if not isinstance(error, Exception):
            return
        bid, clock = self._other_bid(), self._claim.clock
        again = lambda: self._again(bid, lambda claim: claim.failing(error))
        try:
            outcome = yield from retries.retry_transient(again, clock, retries.patience(clock))
        except Exception as trouble:  # the body's own exception goes on, with a note
            error.add_note(f"onceward: and then {trouble}")
            return
        if self._has_left(outcome):  # only the body can have committed this claim
            yield from self.ended_early()
            raise ended_by_body(self._bid.key) from error

    def ended_early(self) -> Steps[None]:
        """Claim the key again, if the body has not committed its claim, and park it."""
        self._claim.reopened(self._claimed)
        yield from self._again(self._bid, lambda claim: claim.leaving(protocol.parked(ENDED), "park it"))

    def was_committed(self, error: BaseException) -> Steps[bool]:
        """Claim the key again: that waits for the transaction, and fails if it was committed."""

        def ending(claim: EndingClaim) -> Steps[None]:
            if isinstance(error, Exception):
                return claim.failing(error)
            return claim.leaving(protocol.released(noted(describe(error), claim.policy)), "give it back")

        committed, bid = False, self._other_bid()
        try:
            outcome = yield from ask_again(lambda: self._again(bid, ending), self._claim, error)
            committed = isinstance(outcome, Replay) and self._has_left(outcome)
            if committed:
                self._claim.record = outcome.record  # with its times, which came with the lost reply
        finally:
            if not committed:
                self._claim.reopened(self._claimed)
        if not committed and self._has_left(outcome):
            yield from self.ended_early()
            raise ended_by_body(self._bid.key) from error
        return committed

    def untold(self) -> None:
        """Nothing: the claim is gone with the transaction."""

    def _other_bid(self) -> Bid:
        """Return a bid of another owner, which tells its claim from the transaction's."""
        return self._bid._replace(owner=os.urandom(16).hex())

    def _has_left(self, outcome: Won | Replay | Refused) -> bool:
        """Return whether ``outcome`` is a record that the transaction's own claim has left."""
        return not isinstance(outcome, Won) and outcome.record.owner == self._bid.owner

    def _again(self, bid: Bid, ending: Callable[[EndingClaim], Steps[None]]) -> Steps[Won | Replay | Refused]:
        """Claim the key again, and end it with ``ending(claim)``."""
        outcome = yield from apart(steps.claim(self._guard.store, bid, value=False))
        if (
            isinstance(outcome, Refused) and not outcome.record.owner
        ):  # nobody's: the row is locked, by the lost transaction
            raise KeyLocked(f"{bid.key}: an open transaction still holds the key")
        if isinstance(outcome, Won):
            first = self._claim.story
            claim = self._guard.held(outcome, bid.policy, 0.0, listening=first is not None)
            if claim.story is not None and first is not None:
                claim.story.began, claim.story.since = first.began, first.since
                claim.story.span, first.span = first.span, None
            yield from apart(ending(claim))
            self.ended.append(claim)
        return outcome

"""Messages of the campaign: what handlers send, the target that they go to, and the relays."""

import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from onceward import StoreError
from onceward.claim.claim import Claim
from onceward.outbox import Relay, drain, pending, register, sender, sending
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage
from torture.plan import SENDING, Plan
from torture.strikes import strike

if TYPE_CHECKING:
    from torture.actor import Actor

ADDRESS = "journal:"
PATIENCE = 60.0  # seconds until all is sent at the end of an episode
_STRIKES = {"kill": 0.03, "pause": 0.03}  # how often they come before a message is journaled, and after it
_NOT_NOW, _HANGS = 0.12, 0.05


def prepare(actor: "Actor") -> None:
    """Make the send leases and pauses of this process short, and open the target."""
    if actor.plan.shape not in SENDING:
        return
    sending.LONGEST_SEND = actor.plan.lease
    sending.SENT_WITHIN, sending._SPARE = 0.1, 0.05
    sending.FIRST_PAUSE, sending.LONGEST_PAUSE = 0.05, 0.2
    sender.AT_EXIT = 0.5
    assert pending  # imported before the first handler, because the import system swallows some interrupts
    register("journal", lambda _: JournaledTarget(actor))


def offer(actor: "Actor", key: str, run: str, claim: Claim, number: int) -> None:
    """Send a message from a handler, if this shape has messages."""
    if actor.plan.shape not in SENDING:
        return
    phase, actor.points.phase = actor.points.phase, "settle"
    own = claim.send(ADDRESS, f"{key} {run} {number}")
    actor.points.phase = phase
    actor.journal("offered", run=run, key=key, number=number, own=own)


class JournaledTarget:
    """Journals what it takes and what it refuses. It can be slow, say "not now", and be struck."""

    batch = 3

    def __init__(self, actor: "Actor") -> None:
        self._actor = actor
        self._chance = random.Random(f"{actor.plan.seed} {actor.number}")

    def check(self, message: OutboxMessage) -> None:
        pass

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        return [self._answer(message) for message in messages]

    def _answer(self, message: OutboxMessage) -> Exception | None:
        key, run, number = message.body.split()
        if is_refused(self._actor.plan, key, int(number)):
            self._actor.journal("refused", key=key, run=run, number=int(number), own=message.key)
            return MessageRefused("never")
        if self._chance.random() < _NOT_NOW:
            return MessageNotSent("not now", retry_after=self._chance.choice((None, 0.1)))
        if self._chance.random() < _HANGS:
            time.sleep(self._actor.plan.lease * self._chance.random() * 1.2)
        self._strike()
        self._actor.journal("sent", key=key, run=run, number=int(number), own=message.key)
        self._strike()
        return MessageNotSent("taken, but nobody knows") if self._chance.random() < _NOT_NOW / 2 else None

    def _strike(self) -> None:
        drawn = self._chance.random()
        for kind, share in _STRIKES.items():
            if 0 <= drawn < share and self._actor.number >= 0:
                strike(self._actor, kind)
            drawn -= share

    def close(self) -> None:
        pass


def is_refused(plan: Plan, key: str, number: int) -> bool:
    """Return whether the target refuses a message for good: whoever sends it, and in each attempt."""
    return random.Random(f"{plan.seed} {key} {number}").random() < 0.15


def relay(actor: "Actor", seconds: float) -> None:
    """Be a relay beside the workers."""
    with Relay(actor.once, every=0.1):
        time.sleep(seconds)
    drain(0.2)


def send_rest(actor: "Actor") -> None:
    """Be the last relay, until nothing is left to send."""
    limit = time.monotonic() + PATIENCE
    last = Relay(actor.once, every=0.1)
    while time.monotonic() < limit:
        with suppress(StoreError):  # of a wire that is lossy to the end
            last.run(until_empty=True)
            drain(1.0)
            if not list(actor.once.ledger.records(status=["UNSENT"])):
                return
        time.sleep(0.05)
    actor.journal("unsent-at-the-end", backlog=len(sender.SENDER), pid=os.getpid())

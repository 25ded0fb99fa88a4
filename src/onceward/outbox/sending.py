"""One record whose messages are being sent: what is next, what its target answered, and what to write about it.

Nothing here does I/O. ``sender.py`` sends and writes, for the process that completed the record, for a duplicate, and for a relay.
"""

import os
from typing import TYPE_CHECKING, Final

import msgspec

from onceward.core.clock import boottime
from onceward.core.many import UnsentNote
from onceward.core.origin import headers_for
from onceward.core.outbox_writes import NEVER_DUE
from onceward.core.policy import Policy, Seal
from onceward.core.record import Record
from onceward.core.retries import jittered
from onceward.core.steps import Lost, Won
from onceward.core.writes import LONGEST_SEND, send_lease
from onceward.observe.events import Event, Kind, about
from onceward.observe.observers import Observers
from onceward.outbox.targets import SENT_WITHIN, MessageRefused, OutboxMessage
from onceward.results.message_entries import MessageEntry, Unsent, opened_message, unsent_of
from onceward.results.outcomes import describe
from onceward.results.sealing import sealed_note
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from concurrent.futures import Future

FIRST_PAUSE: Final = 1.0  # seconds after the first try in vain; doubled each time
LONGEST_PAUSE: Final = 300.0
_ASKED: Final = 86_400.0  # seconds at most that a target can ask us to wait: a day
_SPARE: Final = 2.0  # seconds of the send lease beyond one request
_FIRST_LOOK: Final = 0.1  # seconds until a transaction of the caller is probably committed
_LOOKING: Final = 30.0  # seconds after which it is left to a relay
_LONGEST_REASON: Final = 200  # characters of a refusal: there can be many in a record


class SendingRecord:
    """The messages of one record, in order.

    Args:
        store: the ledger.
        record: the record, as it was seen last.
        seal: opens its messages, if they are sealed.
        observers: are told.
        until: how long the send lease is believed in, on this machine's clock (seconds); 0 if it must be taken first.
        first_try: gets None when the target has first answered, or the record is left to others.
        is_certain: whether the record is committed. If not, look for it first.

    Attributes:
        again_at: when to try again, on this machine's clock.
        events: what observers are told next.

    Raises:
        ValueError: the record has no messages, or they cannot be read.
    """

    def __init__(
        self,
        store: Store,
        record: Record,
        seal: Seal | None,
        observers: Observers,
        until: float = 0.0,
        first_try: "Future[None] | None" = None,
        *,
        is_certain: bool = True,
    ) -> None:
        if record.unsent is None:
            raise ValueError(f"{record.key}: no message is left to send")
        read = unsent_of(record.unsent)
        self.store = store
        self.record = record
        self.is_certain = is_certain
        self._since = boottime()
        self.again_at = 0.0 if is_certain else self._since + _FIRST_LOOK
        self.events: list[Event] = []
        self._observers = observers
        self._seal = seal
        self._until = until
        self._first_try = first_try
        self._keep = read.keep
        self._entries = list(read.messages)
        self._pause: float | None = None  # after a message that was not sent now
        self._changed = False  # whether the record has to be told
        self._sent = 0

    # --- what is next -------------------------------------------------------------------------------------------------

    @property
    def head(self) -> MessageEntry | None:
        """The next message; None if all are sent or refused."""
        return next((entry for entry in self._entries if entry.refused is None), None)

    @property
    def left(self) -> int:
        """How many messages are neither sent nor refused."""
        return sum(entry.refused is None for entry in self._entries)

    @property
    def is_ours(self) -> bool:
        """Whether the send lease lasts for one more request."""
        return self._until - boottime() >= SENT_WITHIN + _SPARE

    @property
    def must_note(self) -> bool:
        """Whether to write what has happened, before anything else is sent."""
        return self._changed and (self._pause is not None or self.head is None)

    def message(self) -> OutboxMessage:
        """Return the next message as its target gets it; raises NotOpened if its seal is missing or another one."""
        entry = self.head
        assert entry is not None
        body, headers = opened_message(entry, self._seal)
        from_us = headers_for(self.record.key, self.record.origin)
        return OutboxMessage(entry.key, body, {**headers, **from_us}, entry.delay, entry.group)

    def looked(self, record: Record | None) -> bool:
        """Take in what the ledger has of a record that may not be committed yet. Return whether it is worth another look."""
        # Until ours is committed, one that has expired can stand there.
        if record is None or record.fence < self.record.fence:
            now = boottime()
            waited = now - self._since
            self.again_at = min(now + max(_FIRST_LOOK, 3 * waited), self._since + _LOOKING)
            return waited < _LOOKING
        self.is_certain = True
        self.again_at = 0.0
        return record.version == self.record.version

    # --- what its target answered -------------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[int, str, str, int]:
        """What tells it from other records, also from another one of its key, such as that of a lost transaction."""
        return (id(self.store), self.record.key, self.record.owner, self.record.fence)

    def answered(self, error: Exception | None, *, can_others: bool = False) -> None:
        """Take the answer to the next message: None if it was sent.

        With ``can_others``, only this process cannot send it. It waits, and leaves the message to others meanwhile.
        """
        entry = self.head
        assert entry is not None
        place = self._entries.index(entry)
        self._changed = True
        if error is None:
            del self._entries[place]
            self._sent += 1
        elif isinstance(error, MessageRefused):
            why = describe(error)[:_LONGEST_REASON]
            if entry.is_sealed and self._seal is not None:  # the target can quote the message
                why = sealed_note(self._seal, why)
            self._entries[place] = msgspec.structs.replace(entry, refused=why)
            self._happened("refused", error=error, target=entry.to)
        else:
            self._entries[place] = again = msgspec.structs.replace(entry, tries=entry.tries + 1)
            self._pause = pause_after(again.tries, error)
            self.again_at = boottime() + self._pause
            if can_others:
                self._pause = 0.0
            self._happened("send_failed", error=error, target=entry.to)
        self.wake()

    def put_off(self, seconds: float) -> None:
        """Leave the next message to others, due after so many seconds. What was sent before it is written first."""
        self._pause = seconds

    def wake(self) -> None:
        """Wake who waits for the first answer."""
        if self._first_try is not None and not self._first_try.done():
            self._first_try.set_result(None)

    # --- what to write ------------------------------------------------------------------------------------------------

    def note(self) -> UnsentNote:
        """Return what to write: that all are sent, or what is left and when to try again; else, take the send lease."""
        if not self._entries:
            return UnsentNote(self.record, None, None, self._keep)
        # The id makes each write another one, so that a lost reply is recognised.
        text = Unsent(os.urandom(8).hex(), self._keep, self._entries).text
        if self.head is None:
            return UnsentNote(self.record, text, NEVER_DUE, self._keep)
        return UnsentNote(self.record, text, self._pause if self.must_note else LONGEST_SEND, self._keep)

    def noted(self, outcome: Won | Lost) -> bool:
        """Take in the reply. Return whether this process still sends the record's messages."""
        if isinstance(outcome, Lost):  # somebody else sends them, or a person has changed the record
            return False
        done = self.head is None
        if done and self._sent:
            waited = (outcome.record.updated_at or 0.0) - outcome.record.lease_until  # since the completion
            self._happened("sent", waited=max(0.0, waited), messages=self._sent)
        self.record, self._until = outcome.record, outcome.until
        self._changed, self._pause = False, None
        return not done

    def tell(self) -> None:
        """Tell observers what has happened. Call it while no lock is held."""
        events, self.events = self.events, []
        self._observers.tell(*events)

    def _happened(self, kind: Kind, **more: object) -> None:
        self.events.append(about(kind, self.record, **more))


def believed(store: Store, policy: Policy, since: float) -> float:
    """Return how long the worker that completes a key believes in its send lease, on its clock.

    Args:
        store: the ledger.
        policy: the claim's.
        since: when the completion was first sent, on that clock (seconds).
    """
    lease = send_lease(policy)
    return since + lease - lease / 100 - store.resolution


def pause_after(tries: int, error: Exception | None = None) -> float:
    """Return how many seconds to wait after so many tries in vain, or longer if the target has asked for it."""
    pause = jittered(min(FIRST_PAUSE * 2.0 ** min(tries - 1, 30), LONGEST_PAUSE)).seconds
    wait = getattr(error, "retry_after", None)
    return max(pause, min(wait, _ASKED)) if isinstance(wait, int | float) else pause

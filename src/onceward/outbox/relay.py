"""Finds messages that nobody sends any more, and lets the sender of this process send them.

Any number of relays can work on one ledger. They share the work by the send lease: of two that take the same record, one wins.
"""

import os
import threading
from random import SystemRandom
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from onceward.core.arguments import check_type
from onceward.core.drivers import drive
from onceward.core.policy import Seal
from onceward.core.protocol import has_messages
from onceward.core.record import Record
from onceward.core.selections import DueWithin
from onceward.errors import StoreError
from onceward.observe.logs import logger
from onceward.observe.observers import Observers
from onceward.outbox import sender
from onceward.outbox.sending import SendingRecord, pause_after
from onceward.outbox.targets import open_target
from onceward.results.message_entries import opened_message
from onceward.results.outcomes import describe
from onceward.stores.capabilities import OUTBOX

if TYPE_CHECKING:
    from onceward.once import Once

_RANDOM: Final = SystemRandom()  # a seeded generator of the application's is left alone

EVERY: Final = 5.0  # seconds between two looks; doubled while nothing is due,
SELDOM: Final = 60.0  # up to this
PAGE: Final = 100  # records of one look; DynamoDB reads as many in one request
_BACKLOG: Final = 500  # records that the sender can work on; with more, it gets no others
_MOMENT: Final = 0.05  # seconds until another look at how many there are
_REASONS: Final = 100  # that are logged: addresses can have numbers in them
_PAUSES: Final = " has failed, and is tried again later"  # the sender has said so
_STOPPING: Final = 5.0  # seconds for which stop() waits for a look under way


class RelayPass(NamedTuple):
    """What a relay found when it looked once at what is due.

    Attributes:
        taken: how many records it handed over to the sender.
        left: the keys that it leaves alone, and why.
        more: whether to look again at once.
        is_full: whether the sender has too many records to take all.
        wait: seconds until the messages of other records are due; None if the ledger knows of none.
    """

    taken: int
    left: dict[str, str]
    more: bool
    is_full: bool
    wait: float | None


class Relay:
    """Sends messages that a crashed process has left in a ledger, or that a target did not take at first.

    Use it as a context, or call :meth:`start` and :meth:`stop`::

        with Relay(once):
            serve()

    Args:
        once: the ledger, its observers, and its ``seal``.
        seal: opens messages that guards with another ``seal=`` have sealed.
        every: seconds between two looks at the ledger. While nothing is due, the pause doubles, up to a minute.
        observers: get the events instead of the observers of ``once``.

    Attributes:
        wait: seconds from the last look until the messages of other records are due; None if the ledger knows of none.

    Raises:
        TypeError: the ledger cannot find messages that are due.
        ValueError: ``every`` is not a positive number of seconds.
    """

    def __init__(
        self, once: "Once", *, seal: Seal | None = None, every: float = EVERY, observers: Observers | None = None
    ) -> None:
        check_type("Relay(once)", once, "store", "a Once, as in Relay(Once('sqlite:///orders.db'))")
        if not 0 < every <= 3600:
            raise ValueError(f"every={every!r}: give a positive number of seconds, up to an hour")
        self._store = once.store
        self._ready = OUTBOX.require(once.store)
        self._seal = seal or once.policy.seal
        self._every = every
        self._observers = observers or once.guards.observers
        self.wait: float | None = None
        self._after: str | None = None
        self._logged: set[str] = set()  # why records are left
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Raise StoreError if the ledger lacks what a relay needs; the message says how to make it."""
        drive(self._ready(), self._store)

    def look(self) -> RelayPass:
        """Find up to 100 records whose messages are due, and hand them over to the sender of this process.

        The next call continues where this one ended, so records that it skips do not hide later ones.
        """
        page = drive(self._store.select(DueWithin(), self._after, PAGE), self._store)
        self._after, self.wait = page.next, page.wait
        reasons = {one.key: f"a record cannot be read: {one.why}" for one in page.damaged}
        records = list(page.records)
        _RANDOM.shuffle(records)  # relays that look at the same time take different ones first
        count, is_full = 0, False
        for record in records:
            outgoing, why = self._outgoing(record)
            if outgoing is None:
                reasons[record.key] = why
            elif sender.SENDER.hand_over(outgoing):
                count += 1
            else:
                is_full = True
        for key, why in reasons.items():
            if not why.endswith(_PAUSES) and why not in self._logged and len(self._logged) < _REASONS:
                self._logged.add(why)
                logger().warning("%s: messages of %s are not sent: %s", self._store.url, key, why)
        if is_full:
            self._after = None  # from the start, when there is room
        return RelayPass(count, reasons, page.next is not None, is_full, page.wait)

    def _outgoing(self, record: Record) -> tuple[SendingRecord | None, str]:
        """Return the record for the sender, or None and why this process leaves it alone."""
        if not has_messages(record):
            return None, "a newer version may know what they mean"
        try:
            outgoing = SendingRecord(self._store, record, self._seal, self._observers)
        except ValueError as error:
            return None, f"they cannot be read: {describe(error)}"
        entry = outgoing.head
        if entry is None:
            return None, "they are refused"
        if entry.is_sealed and self._seal is None:
            return None, "they are sealed, and this relay has no seal"
        if sender.SENDER.pause_of(entry.to) or sender.SENDER.is_full(entry.to):
            return None, f"{entry.to}{_PAUSES}"
        try:
            opened_message(entry, self._seal)
            open_target(entry.to)
        except Exception as error:  # the seal and the target can be the user's
            return None, f"this process cannot send to {entry.to}: {describe(error)}"
        return outgoing, ""

    # --- the loop -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look for messages in a thread, until :meth:`stop`. Errors of the ledger are logged, and it goes on.

        Raises:
            RuntimeError: it looks already.
        """
        if self._thread is not None and self._thread.is_alive():
            raise RuntimeError("this relay looks for messages already: stop it first, or make another one")
        self._stop.clear()
        self._thread = threading.Thread(target=self._serve, name="onceward-relay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking. The sender still sends what it has. You can call this again."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOPPING)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self) -> None:
        if self._stop.wait(_RANDOM.uniform(0.2, 1.0) * self._every):  # processes that start together look apart
            return
        try:
            self.check()
        except StoreError as error:
            if not error.transient:
                logger().info("no relay runs in this process: %s", error)
                return
        except Exception as error:  # a ledger that can only be awaited
            logger().info("no relay runs in this process: %s", describe(error))
            return
        self.run()

    def run(self, *, until_empty: bool = False) -> dict[str, str]:
        """Look for messages in this thread until :meth:`stop`. Return the keys that it skipped, and why.

        Args:
            until_empty: also end when nothing more is due.

        Raises:
            StoreError: the ledger failed, with ``until_empty``. Without it, it is tried again.
        """
        pause, failures = self._every, 0
        reasons: dict[str, str] = {}
        while not self._stop.is_set():
            if sender.SENDER.backlog >= _BACKLOG:
                self._stop.wait(_MOMENT)
                continue
            try:
                look = self.look()
            except Exception as error:
                if until_empty:
                    raise
                self._after, failures = None, failures + 1
                if failures == 1:
                    logger().warning("a relay cannot look for messages, and tries again: %s", describe(error))
                self._stop.wait(min(pause_after(failures), SELDOM))
                continue
            if failures:
                logger().info("%s: the relay works again", self._store.url)
            failures = 0
            if until_empty:
                reasons |= look.left
            if look.is_full:
                self._stop.wait(1.0)
            elif not look.more:
                if until_empty:
                    break
                pause = self._every if look.taken else min(pause * 2, max(SELDOM, self._every))
                wait = pause if look.wait is None else max(self._every, min(pause, look.wait))
                self._stop.wait(wait * _RANDOM.uniform(1.0, 1.2))  # relays that wait for the same moment
        return reasons


def relay_beside(once: "Once", seal: Seal | None = None) -> Relay | None:
    """Return a relay for a process that does other work, started; None if the ledger cannot find messages.

    On Lambda there is none: it freezes the process after each call, in the middle of a look.
    """
    if "AWS_LAMBDA_FUNCTION_NAME" in os.environ or OUTBOX.of(once.store) is None:
        return None
    relay = Relay(once, seal=seal, every=EVERY)
    relay.start()
    return relay

"""Moves the messages of a dead-letter queue to a queue with guarded consumers, so that none is lost or doubled.

First a message's key is made ready to run again: unparked, or its attempts reset. Then its copy is sent, with an attribute that
carries the original's default key (``letters.py``). Then the message is deleted. After a kill between the last two, the next run
sends it again. A FIFO queue drops the second copy by its deduplication id. In a standard queue, it has the key of the first, and
replays.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple

from onceward.aws.dead_letters.letters import Refusal, copy_of, origin
from onceward.aws.events.sqs import Unwrap, check_unwrap, message_delivery
from onceward.aws.sqs.broker import record_of
from onceward.aws.sqs.message import Message
from onceward.aws.sqs.queue import Queue, QueueSettings
from onceward.aws.sqs.visibility import Visibility
from onceward.consumers.reader import DELIVERY_NAME, default_key
from onceward.consumers.redriving import InDoubt, LetterOutcome, OnCompleted, Plan, check_redrive, readied
from onceward.core.record import Record
from onceward.errors import OncewardError, StoreError
from onceward.keys.ledger_keys import checked_name, derived_key, ledger_key
from onceward.keys.paths import fixed
from onceward.keys.reading import KeyReader
from onceward.once import Once, check_once
from onceward.stores.contract import DamagedRecord

__all__ = ["Backlog", "Fate", "Redrive"]

# Seconds. A long poll asks all servers of a queue, so that no answer means no message (SQS Developer Guide, "Amazon SQS
# short and long polling").
WAIT: Final = 2.0
_AT_ONCE: Final = 10  # messages
_IN_A_ROW: Final = 10  # failures after which the messages are not the cause

_BODY: Final = fixed("body", "the decoded body of the message")


class Fate(NamedTuple):
    """The outcome of a message; in a dry run, the expected outcome.

    Attributes:
        outcome: "moved"; "dropped": completed, and deleted because of the option; or it stays: "refused" or "failed".
        message: as it was received.
        reason: why, for people.
        key: the key in the ledger; None if it was not read.
        record: the key's record, as it was read; None if there is none.
        error: the exception, if something failed; else None.
        waits: whether later messages of its group must wait for it.
    """

    outcome: LetterOutcome
    message: Message
    reason: str
    key: str | None = None
    record: Record | None = None
    error: Exception | None = None
    waits: bool = False

    @property
    def leaves(self) -> bool:
        """Whether the message leaves the dead-letter queue."""
        return self.outcome in {"moved", "dropped"}


class Backlog(NamedTuple):
    """What a dead-letter queue contains before a run. SQS gives both numbers only approximately.

    Attributes:
        visible: messages that can be received.
        hidden: messages that another consumer, or a killed run, holds now.
        notes: what a person should know.
    """

    visible: int
    hidden: int
    notes: list[str]


class Redrive:
    """One move of the messages of a dead-letter queue. You can stop or kill it at any time, and run it again.

    Args:
        once: the ledger of the queue's consumers.
        source: the dead-letter queue.
        target: where its messages go.
        name: the namespace of the consumers' keys.
        key: the consumers' ``key=``, when it is a JMESPath expression, with ``body`` for the handler's parameter; None for
            their default key.
        unwrap: the consumers' ``unwrap=``; ``key`` then applies to the message in SNS's envelope.
        fingerprint: the consumers' ``fingerprint=``, written like ``key``; ``"body"`` stands for True.
        completed: what to do with a message whose key is completed: "keep" or "drop" it.
        in_doubt: what to do with a parked message whose effect may be made: "keep" it, or "rerun" it. Ask the downstream first.
        visibility: whole seconds that a message stays invisible to others if this process is killed.
        limit: the most messages that leave the queue; None is all.
        dry_run: change nothing. Messages are hidden while it runs, and SQS counts a receive.

    Attributes:
        unseen: about how many messages the last run could not receive: others have them, or they come after one of their
            group that stays.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        once: Once,
        source: Queue,
        target: Queue,
        *,
        name: str,
        key: str | None = None,
        unwrap: Unwrap | None = None,
        fingerprint: str | None = None,
        completed: OnCompleted = "keep",
        in_doubt: InDoubt = "keep",
        visibility: int = 60,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> None:
        check_once(once, "Redrive({}, source, target, name='billing.charge')")
        check_redrive(completed, in_doubt, limit)
        if not 1 <= visibility <= 43200:
            raise ValueError(f"visibility={visibility!r}: give 1 to 43200 whole seconds")
        self._once, self._source, self._target = once, source, target
        check_unwrap(unwrap)
        self._name, self._unwrap = checked_name(name), unwrap
        self._keys = KeyReader(default_key if key is None else key, fingerprint, _BODY, more=(DELIVERY_NAME,))
        self._completed: OnCompleted = completed
        self._in_doubt: InDoubt = in_doubt
        self._visibility, self._limit, self._dry_run = visibility, limit, dry_run
        self._room = 0  # bytes that a message may have in the target
        self._sent: set[str] = set()  # origins of the messages that were moved
        self._stuck: set[str] = set()  # message groups that must not be overtaken
        self._failures = 0
        self.unseen = 0

    def waiting(self) -> Backlog:
        """Read both queues' attributes; nothing is received yet.

        Raises:
            ValueError: the queues do not fit each other.
            OncewardError: they cannot be read.
        """
        attributes = self._source.attributes()
        source, target = QueueSettings.read(attributes), QueueSettings.read(self._target.attributes())
        if source.arn == target.arn:
            raise ValueError(f"{source.name} is both the dead-letter queue and the target: give another target")
        if source.fifo is not target.fifo:
            raise ValueError(
                f"one of {source.name} and {target.name} is a FIFO queue, and the other is not: give a target of the same kind"
            )
        if source.dead_letters == target.arn:
            raise ValueError(f"{target.name} is the dead-letter queue of {source.name}: swap the two")
        notes = []
        if source.dead_letters is not None:
            notes.append(
                f"{source.name} has a dead-letter queue of its own, which gets a message after {source.receives} receives, and each "
                "run counts as one"
            )
        hidden = int(attributes["ApproximateNumberOfMessagesNotVisible"])
        if hidden:
            notes.append(
                f"about {hidden} message(s) of {source.name} are hidden now: another consumer has them, or a killed run had them. "
                "Run this again when they are visible"
            )
        self._room, self.unseen = target.largest, hidden
        return Backlog(int(attributes["ApproximateNumberOfMessages"]), hidden, notes)

    def run(self, stopped: Callable[[], bool] = lambda: False) -> Generator[Fate, None, None]:
        """Yield each message's outcome. At the end, or on close, unhide the messages that stay.

        Args:
            stopped: a callable, called before each receive. The run ends when it returns True.

        Raises:
            OncewardError: the queues do not fit each other; or a queue or the ledger cannot be reached, or refuses every
                message.
        """
        if not self._room:
            self.waiting()
        remaining = self._limit
        hidden, self.unseen = self.unseen, 0
        with self._hidden() as (visibility, receipts), ThreadPoolExecutor(_AT_ONCE) as pool:
            while not stopped() and (remaining is None or remaining > 0):
                count = _AT_ONCE if remaining is None else min(_AT_ONCE, remaining)
                messages = self._source.receive(count, WAIT, self._visibility)
                if not messages:
                    if hidden or (self._source.fifo and receipts):  # else SQS can still count what was deleted
                        backlog = self.waiting()
                        self.unseen = max(0, backlog.visible + backlog.hidden - len(receipts))
                    return
                # Thousands may stay, each up to 1 MiB, so they are held without their bodies.
                visibility.hold(message._replace(body="", user_attributes={}) for message in messages)
                # A standard queue may deliver one message twice, even in one answer, and again if its visibility has ended.
                fresh = {message.id: message for message in messages if message.id not in receipts}
                receipts.update((message.id, message.receipt) for message in messages)
                fates = [fate for done in pool.map(self._in_turn, self._turns(fresh.values())) for fate in done]
                if not self._dry_run:
                    fates = self._delete(fates)
                    for fate in fates:
                        if fate.leaves:
                            visibility.release(receipts.pop(fate.message.id))
                yield from fates
                remaining = None if remaining is None else remaining - sum(fate.leaves for fate in fates)
                self._check(fates)

    @contextmanager
    def _hidden(self) -> Generator[tuple[Visibility, dict[str, str]], None, None]:
        """Keep messages invisible to others; at the end give back those whose receipts, by id, are left."""
        visibility, receipts = Visibility(self._source, self._visibility), dict[str, str]()
        visibility.start()
        try:
            yield visibility, receipts
        finally:
            for receipt in receipts.values():
                visibility.give_back(receipt)
            visibility.close()

    def _turns(self, messages: Iterable[Message]) -> list[list[Message]]:
        """Divide messages into lists that are handled side by side: in a FIFO queue, by message group."""
        turns: dict[str, list[Message]] = {}
        for message in messages:
            turns.setdefault((message.group if self._source.fifo else None) or message.id, []).append(message)
        return list(turns.values())

    def _in_turn(self, messages: Sequence[Message]) -> list[Fate]:
        return [self._handle(message) for message in messages]

    def _handle(self, message: Message) -> Fate:
        if message.group in self._stuck:
            return Fate("refused", message, f"an earlier message of its group {message.group} must go first")
        try:
            fate = self._judged(message)
        except (Refusal, DamagedRecord) as refusal:
            fate = Fate("refused", message, str(refusal), waits=True)
        except (OncewardError, ValueError, TypeError) as error:
            fate = Fate("failed", message, str(error), error=error, waits=True)
        if fate.waits and self._source.fifo and message.group is not None:
            self._stuck.add(message.group)
        return fate

    def _judged(self, message: Message) -> Fate:
        """Decide about a message, and send its copy if it leaves."""
        key, mark = self._read(message)
        if origin(message) in self._sent:
            raise Refusal("this run already moved it, or a copy of it: find out first why it came back")

        def look(*, dry_run: bool) -> tuple[Plan, Record | None]:
            return readied(self._once, key, self._completed, self._in_doubt, dry_run=dry_run, fingerprint=mark)

        plan, record = look(dry_run=True)
        if plan.moves:
            dedup = derived_key(ledger_key("onceward.redrive", message.id), ("send",)) if self._target.fifo else None
            # It refuses what cannot be sent before anything is changed.
            copy = copy_of(message, dedup, self._room)
            if not self._dry_run:
                plan, record = look(dry_run=False)
                if plan.moves:
                    self._target.send(copy)
        if plan.moves:
            self._sent.add(origin(message))
        outcome: LetterOutcome = "moved" if plan.moves else "dropped" if plan.step == "drop" else "refused"
        return Fate(outcome, message, plan.reason, key, record, waits=plan.step == "wait")

    def _read(self, message: Message) -> tuple[str, str | None]:
        """Return the key in the ledger, and the fingerprint of the message's input, as its consumer reads them."""
        try:
            delivery = message_delivery(record_of(message, ""), unwrap=self._unwrap, fifo=False)
            if delivery.fault is not None:
                raise delivery.fault
            args = {"body": delivery.data}
            key = self._keys.key(args, {DELIVERY_NAME: delivery})
            return ledger_key(self._name, key), self._keys.fingerprint(args, args)
        except (OncewardError, TypeError) as error:
            raise Refusal(f"its key cannot be read: {error}") from error

    def _delete(self, fates: Sequence[Fate]) -> list[Fate]:
        """Delete the messages that leave the queue; return the fates, as failed where a delete failed."""
        errors = iter(self._source.delete_many([fate.message.receipt for fate in fates if fate.leaves]))
        return [fate if not fate.leaves or (error := next(errors)) is None else _failure(fate, error) for fate in fates]

    def _check(self, fates: Sequence[Fate]) -> None:
        """Raise an error that is not about one message, because all the others would fail, too."""
        for fate in fates:
            if isinstance(fate.error, StoreError):
                raise fate.error
            self._failures = self._failures + 1 if fate.error is not None else 0
            if self._failures >= _IN_A_ROW and fate.error is not None:
                raise fate.error


def _failure(fate: Fate, error: Exception) -> Fate:
    reason = f"it is {fate.outcome}, but was not deleted, so the next run decides about it again. If its copy has run by then, give --completed drop: {error}"
    return fate._replace(outcome="failed", reason=reason, error=error)

"""What to do with a dead letter because of its key's record, and the move of letters that carry their keys."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Final, Literal, NamedTuple, TypedDict

from onceward.core import protocol
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, message_in
from onceward.core.record import IN_PROGRESS, PARKED, Record
from onceward.errors import OncewardError, StoreError
from onceward.once import Once, check_once
from onceward.results.step_entries import doubt_about
from onceward.stores.contract import DamagedRecord
from onceward.stores.ledger import Ledger

_TRIES: Final = 5  # copies; a worker may receive and keep each before the key is unparked


def check_keeps(record: Record) -> str:
    """Return the message that a record keeps, as text; raises OncewardError if there is none."""
    text = protocol.message_in(record)
    if text is None:
        why = "is not parked" if record.status != PARKED else "keeps no message: leave out --to"
        raise OncewardError(f"{record.key}: it is {record.status} and {why}")
    return text


def unparked_after(ledger: Ledger, key: str, send: Callable[[Record], None], queue: str) -> Record:
    """Let ``send`` send the message to ``queue`` that a parked record keeps, and unpark its key; return the record as it is now.

    Raises:
        NotFound: there is no such key.
        StoreError: the ledger failed; a copy may have been sent.
        OncewardError: the key is not parked, or keeps no message.
    """
    for _ in range(_TRIES):
        record, _ = ledger.show(key, whole=True)
        check_keeps(record)
        send(record)
        write = protocol.unparked(record)
        assert write is not None  # it keeps a message
        reply = drive(ledger.store.swap(write, record), ledger.store)
        if reply.won and reply.record is not None:
            return reply.record
    raise OncewardError(
        f"{key}: a worker received each copy before the key was unparked, and kept it again: stop the workers of {queue} for a "
        "moment, and try again"
    )


OnCompleted = Literal["keep", "drop"]
InDoubt = Literal["keep", "rerun"]
Step = Literal["move", "unpark", "reset", "drop", "keep", "wait"]


class Plan(NamedTuple):
    """What to do with a message because of its record.

    Attributes:
        step: "move" it as it is; "unpark" its key or "reset" its attempts, and move it; "drop" the message, because its effect has happened; "keep" it, because its key is completed; or "wait" for a worker that has the key, or for a person.
        reason: why, for people.
    """

    step: Step
    reason: str

    @property
    def moves(self) -> bool:
        """Whether to send a copy."""
        return self.step in {"move", "unpark", "reset"}


def check_redrive(completed: str, in_doubt: str, limit: int | None) -> None:
    """Raise ValueError if an option of a redrive is not valid."""
    for name, value, other in (("completed", completed, "drop"), ("in_doubt", in_doubt, "rerun")):
        if value not in {"keep", other}:
            raise ValueError(f"{name}={value!r}: give 'keep' or {other!r}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit!r}: give a whole number, at least 1")


def planned(
    record: Record | None,
    now: float,
    completed: OnCompleted,
    in_doubt: InDoubt,
    fingerprint: str | None = None,
) -> Plan:
    """Return what to do with a message because of the ``record`` of its key; the fingerprint is the message's, None if unknown."""
    verdict = decide(record, now, "", fingerprint, Policy())
    if record is None or verdict is Verdict.START:
        return Plan("move", "no record of its key")
    if verdict is Verdict.UNKNOWN:
        why = "a later version of onceward wrote its record, and this one does not understand it: upgrade onceward"
        return Plan("wait", why)
    if verdict is Verdict.BUSY:
        remaining = record.lease_until - now
        return Plan("wait", f"a worker holds its key for {remaining:.0f} s more, or longer: try again later")
    if verdict is Verdict.MISMATCH:
        why = "its key was used with another input, so its consumer refuses it: fix the message, or its sender"
        return Plan("keep", why)
    if verdict is Verdict.REPLAY:
        return _of_completed(record, completed, unknown=fingerprint is None)
    if message_in(record) is not None:
        why = "its key is parked, and keeps a message, which goes first: `onceward unpark KEY --to QUEUE` sends that again"
        return Plan("wait", why)
    doubt = doubt_about(record)
    if doubt is not None and (in_doubt == "keep" or doubt.step is not None):
        what, again = "its effect", "--in-doubt rerun moves the message"
        if doubt.step is not None:  # a moved message would park its key at this step again
            what, again = f"its step {doubt.step}", "`onceward retry KEY --from STEP`, and redrive once more"
        why = f"parked, and {what} may be made: ask the downstream. If it is not made, {again}; if it is, `onceward settle KEY --result JSON`"
        return Plan("wait", why)
    if record.status == IN_PROGRESS and in_doubt == "keep":
        why = "its worker vanished: its consumer's on_lapse and max_attempts decide whether it runs again"
        return Plan("move", why)
    step: Step = "unpark" if verdict is Verdict.PARKED else "reset" if record.attempts else "move"
    return Plan(step, f"{record.status} after {record.attempts} attempt(s)")


def _of_completed(record: Record, completed: OnCompleted, *, unknown: bool) -> Plan:
    if completed == "keep":
        why = "completed already: --completed drop deletes the message. To run it again, `onceward clear KEY` first"
        return Plan("keep", why)
    if unknown and record.fingerprint is not None:
        why = (
            "its key is completed, maybe with another input, which its consumer compares: say what it compares with --fingerprint, or "
            "this message's effect could be lost"
        )
        return Plan("keep", why)
    return Plan("drop", "completed: its effect has happened")


LetterOutcome = Literal["moved", "dropped", "refused", "failed"]


class DeadLetter(NamedTuple):
    """The outcome of a dead letter; in a dry run, the expected outcome.

    Attributes:
        outcome: "moved" to be handled again; "dropped": completed, and dropped as told; or it stays: "refused" or "failed".
        place: where it is among the dead letters.
        reason: why, for people.
        key: in the ledger; None if it was malformed.
        was: why it was dead-lettered.
    """

    outcome: LetterOutcome
    place: str
    reason: str
    key: str | None = None
    was: str | None = None


class RedriveOptions(TypedDict, total=False):
    """The keywords of a move of dead letters.

    Attributes:
        completed: what to do with a letter whose key is completed: "keep" it (the default), or "drop" it, because its effect has
            happened.
        in_doubt: what to do with a parked letter whose effect may be made: "keep" it (the default), or "rerun" it. Ask the
            downstream first.
        limit: the most letters that leave the queue, and in Kafka those that are decided about; None, the default, is all.
        dry_run: change nothing.
    """

    completed: OnCompleted
    in_doubt: InDoubt
    limit: int | None
    dry_run: bool


class LetterRedrive(ABC):
    """One move of dead letters. You can stop or kill it at any time, and run it again.

    The arguments are those of :class:`onceward.rabbitmq.RabbitRedrive` and :class:`onceward.kafka.KafkaRedrive`.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        once: Once,
        completed: OnCompleted = "keep",
        in_doubt: InDoubt = "keep",
        limit: int | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        check_once(once, f"{type(self).__name__}({{}}, 'orders')")
        check_redrive(completed, in_doubt, limit)
        self._once, self._limit, self._dry_run = once, limit, dry_run
        self._completed, self._in_doubt = completed, in_doubt

    def judged(self, place: str, key: str | None, was: str | None) -> DeadLetter:
        """Return the outcome of a letter. If the letter moves, its key is ready to run again. See :func:`readied`."""
        letter = DeadLetter("failed", place, "", key, was)
        try:
            plan, _ = readied(self._once, key, self._completed, self._in_doubt, dry_run=self._dry_run)
        except DamagedRecord as error:
            return letter._replace(outcome="refused", reason=str(error))
        except StoreError:
            raise
        except OncewardError as error:
            return letter._replace(reason=str(error))
        outcome: LetterOutcome = "moved" if plan.moves else "dropped" if plan.step == "drop" else "refused"
        return letter._replace(outcome=outcome, reason=plan.reason)

    @abstractmethod
    def run_async(self, stopped: Callable[[], bool] = lambda: False) -> AsyncGenerator[DeadLetter, None]:
        """As :meth:`run`, for a coroutine; the ledger's requests block."""

    def run(self, stopped: Callable[[], bool] = lambda: False) -> Generator[DeadLetter, None, None]:
        """Yield the outcome of each letter that is there now.

        Args:
            stopped: a callable, called before letters are read. The run ends when it returns True.

        Raises:
            BrokerError: the broker cannot be reached, or has no such queue or topic.
            StoreError: the ledger cannot be reached.
        """
        with asyncio.Runner() as runner:
            letters = self.run_async(stopped)
            try:
                while True:
                    yield runner.run(anext(letters))
            except StopAsyncIteration:
                return
            finally:
                runner.run(letters.aclose())


def readied(
    once: Once,
    key: str | None,
    completed: OnCompleted,
    in_doubt: InDoubt,
    *,
    dry_run: bool,
    fingerprint: str | None = None,
) -> tuple[Plan, Record | None]:
    """Return what to do with a dead letter, and its record; unpark its key or reset its attempts if it is to run again.

    Do this before the letter is sent: after a kill in between, the next run finds the key ready, and sends it.

    Args:
        once: the ledger of the queue's consumers.
        key: in the ledger; None if the letter was malformed, and so has none.
        completed: what to do with a letter whose key is completed.
        in_doubt: what to do if the effect may be made: "keep" the letter of a parked key, and leave a lapsed key as it is; or
            "rerun" both.
        dry_run: change nothing.
        fingerprint: as for :func:`planned`.

    Raises:
        StoreError: the ledger cannot be reached.
    """
    if key is None:
        return Plan("move", "it was malformed: it has no key"), None
    while True:
        reply = drive(once.store.load(key), once.store)
        record = reply.record
        plan = planned(record, reply.now, completed, in_doubt, fingerprint)
        if dry_run or plan.step not in {"reset", "unpark"} or record is None:
            return plan, record
        try:
            if plan.step == "reset":
                once.ledger.park(key, record.error or "redriven from the dead letters")
            once.ledger.unpark(key)
        except StoreError:
            raise
        except OncewardError:
            continue  # another process was faster: look again
        return plan, record

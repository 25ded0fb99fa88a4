"""Decides about dead letters that carry their key in the ledger (``consumers/dead_letters.py``), and makes the key ready to run again."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Literal, NamedTuple

from onceward.consumers.redriving import InDoubt, OnCompleted, Plan, check_redrive, planned
from onceward.core.drivers import drive
from onceward.errors import OncewardError, StoreError
from onceward.once import Once

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


class LetterRedrive(ABC):
    """One move of dead letters. You can stop or kill it at any time, and run it again.

    The arguments are those of :class:`onceward.rabbitmq.RabbitRedrive` and :class:`onceward.kafka.KafkaRedrive`.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self, once: Once, completed: OnCompleted, in_doubt: InDoubt, limit: int | None, *, dry_run: bool
    ) -> None:
        check_redrive(completed, ("keep", "drop"), in_doubt, limit)
        self._once, self._left, self._dry_run = once, limit, dry_run
        self._completed: OnCompleted = completed
        self._in_doubt: InDoubt = in_doubt

    def judged(self, place: str, key: str | None, was: str | None) -> DeadLetter:
        """Return what becomes of a letter, whose key is ready to run again if it moves. See :func:`readied`."""
        told = DeadLetter("failed", place, "", key, was)
        try:
            plan = readied(self._once, key, self._completed, self._in_doubt, dry_run=self._dry_run)
        except StoreError:
            raise
        except OncewardError as error:
            return told._replace(reason=str(error))
        outcome: LetterOutcome = "moved" if plan.moves else "dropped" if plan.step == "drop" else "refused"
        return told._replace(outcome=outcome, reason=plan.reason)

    @abstractmethod
    def run_async(self, stopped: Callable[[], bool] = lambda: False) -> AsyncGenerator[DeadLetter, None]:
        """As :meth:`run`, for a coroutine; the ledger's requests block."""

    def run(self, stopped: Callable[[], bool] = lambda: False) -> Generator[DeadLetter, None, None]:
        """Yield the outcome of each letter that is there now.

        Args:
            stopped: asked before letters are read; when true, the run ends.

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


def readied(once: Once, key: str | None, completed: OnCompleted, in_doubt: InDoubt, *, dry_run: bool) -> Plan:
    """Return what to do with a dead letter, and unpark its key or reset its attempts if it is to run again.

    Do this before the letter is sent: after a kill in between, the next run finds the key ready, and sends it.

    Args:
        once: the ledger of the queue's consumers.
        key: in the ledger; None if the letter was malformed, and so has none.
        completed: "keep" or "drop" a letter whose key is completed.
        in_doubt: "keep" a letter whose key is parked and whose effect may be made, or "rerun" it.
        dry_run: change nothing.

    Raises:
        StoreError: the ledger cannot be reached.
    """
    if key is None:
        return Plan("move", "it was malformed: it has no key")
    while True:
        reply = drive(once.store.load(key), once.store)
        plan = planned(reply.record, reply.now, completed, in_doubt, begun=False, intended=False)
        if dry_run or plan.step not in {"reset", "unpark"} or reply.record is None:
            return plan
        try:
            if plan.step == "reset":
                once.ledger.park(key, reply.record.error or "redriven from the dead letters")
            once.ledger.unpark(key)
        except StoreError:
            raise
        except OncewardError:
            continue  # another process was faster: look again
        return plan

"""Lanes of records: those whose next message goes to one target, and those to write about in one store.

``sender.py`` owns their threads. Only :meth:`work` does I/O; a lane's other methods run under the sender's lock.
"""

import heapq
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import Final

from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.core.many import note_many
from onceward.core.retries import patience
from onceward.core.steps import Lost, Won
from onceward.observe.logs import logger
from onceward.outbox.sending import LONGEST_PAUSE, SendingRecord, pause_after
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage, Target, open_target
from onceward.results.outcomes import describe
from onceward.stores.contract import Store

_TOGETHER: Final = 25  # records that one write to a store is about
_TRIES: Final = 5  # how often to ask a store that fails, before its records are left to a relay


class Lane(ABC):
    """Records in turn. A failure pauses the lane, longer each time.

    Args:
        place: by what the sender knows it.
        name: what it is, for the log.
        trouble: what a failure of the lane means, for the log.
        most: how many records one request is about.

    Attributes:
        busy: whether a thread works in it.
        resumes_at: until when it pauses, on this machine's clock.
    """

    def __init__(self, place: object, name: str, trouble: str, most: int) -> None:
        self.place, self.name = place, name
        self._trouble, self._most = trouble, most
        self.busy = False
        self.resumes_at = 0.0
        self._failures = 0  # in a row
        self._waiting: list[tuple[float, int, SendingRecord]] = []  # a heap, by when they are due
        self._numbers = itertools.count()

    def add(self, outgoing: SendingRecord) -> None:
        """Put a record at the end. What has happened is written at once; the next try waits."""
        due = boottime() if outgoing.must_note else max(boottime(), outgoing.again_at)
        heapq.heappush(self._waiting, (due, next(self._numbers), outgoing))

    @property
    def backlog(self) -> int:
        """How many records wait for nothing but their turn."""
        now = boottime()
        return sum(due <= now for due, _, _ in self._waiting) if self.resumes_at <= now else 0

    @property
    def stuck(self) -> int | None:
        """How many records wait for a target that has failed; None if it works."""
        return None

    def hurry(self) -> None:
        """Look at once for records that may be committed now."""
        self._waiting = [(due if one.is_certain else 0.0, number, one) for due, number, one in self._waiting]
        heapq.heapify(self._waiting)

    @property
    def wakes_at(self) -> float:
        """When there is something to do, on this machine's clock."""
        return max(self._waiting[0][0], self.resumes_at) if self._waiting else inf

    @property
    def is_over(self) -> bool:
        """Whether the lane can be forgotten, and its failures with it."""
        idle = not (self.busy or self._waiting)
        return idle and (not self._failures or boottime() > self.resumes_at + LONGEST_PAUSE)

    def take(self) -> list[SendingRecord]:
        """Return the records of the next request."""
        now, batch = boottime(), list[SendingRecord]()
        while self._waiting and self._waiting[0][0] <= now and len(batch) < self._most:
            batch.append(heapq.heappop(self._waiting)[2])
        return batch

    @abstractmethod
    def work(self, batch: Sequence[SendingRecord]) -> list[SendingRecord]:
        """Make one request, and return the records that go on."""

    def _failed(self, errors: Sequence[Exception]) -> None:
        """Pause. Log the first failure of an incident."""
        self._failures += 1
        self.resumes_at = boottime() + max(pause_after(self._failures, error) for error in errors)
        if self._failures == 1:
            logger().warning("%s: %s, and they are tried again: %s", self.name, self._trouble, describe(errors[0]))

    def _works(self) -> None:
        if self._failures:
            self._failures, self.resumes_at = 0, 0.0
            logger().info("%s: works again", self.name)


class TargetLane(Lane):
    """Records whose next message goes to one target. The messages of one request are of different keys."""

    def __init__(self, address: str) -> None:
        super().__init__(address, address, "messages are not sent now", 1)

    @property
    def stuck(self) -> int | None:
        """See above."""
        return len(self._waiting) if self._failures else None

    def work(self, batch: Sequence[SendingRecord]) -> list[SendingRecord]:
        """Send the next message of each."""
        try:
            target = open_target(self.name)
            self._most = max(1, target.batch)
        except Exception as error:  # this process does not know it, or not all of it is installed
            self._note_answers(batch, [error] * len(batch), can_others=True)
            return list(batch)
        ready: list[tuple[SendingRecord, OutboxMessage]] = []
        for outgoing in batch:
            try:
                ready.append((outgoing, outgoing.message()))
            except Exception as error:  # only this one's seal
                outgoing.answered(error, can_others=True)
                logger().warning(
                    "%s: its message to %s is not sent: %s", outgoing.record.key, self.name, describe(error)
                )
        # Last of all before the request: this process may have been paused meanwhile.
        ready = [(outgoing, message) for outgoing, message in ready if outgoing.is_ours]
        if ready:
            self._note_answers([one for one, _ in ready], _sent(target, [message for _, message in ready]))
        return list(batch)

    def _note_answers(
        self, batch: Sequence[SendingRecord], answers: Sequence[Exception | None], *, can_others: bool = False
    ) -> None:
        for outgoing, answer in zip(batch, answers, strict=True):
            outgoing.answered(answer, can_others=can_others)
        errors = [one for one in answers if one is not None and not isinstance(one, MessageRefused)]
        if len(errors) < len(answers):
            self._works()
        elif errors:
            self._failed(errors)


def _sent(target: Target, messages: Sequence[OutboxMessage]) -> Sequence[Exception | None]:
    """Return the target's answers. The target can be the user's, and do what it must not."""
    try:
        answers: object = target.send(messages)
        if not isinstance(answers, Sequence) or len(answers) != len(messages):
            raise TypeError(
                f"send() must return a list of {len(messages)} answer(s), None for what was sent: {answers!r}"
            )
    except Exception as error:
        return [error] * len(messages)
    except BaseException as error:
        if threading.current_thread() is threading.main_thread():  # in drain(): an interrupt
            raise
        return [MessageNotSent(f"send() has raised {describe(error)}")] * len(messages)
    return answers


class StoreLane(Lane):
    """Records whose send lease must be taken, or of whose messages something must be written."""

    def __init__(self, store: Store) -> None:
        super().__init__(id(store), store.url, "what is sent of its messages cannot be written", _TOGETHER)
        self._store = store

    def work(self, batch: Sequence[SendingRecord]) -> list[SendingRecord]:
        """Look for those that may not be committed yet, and write about the others together."""
        waiting: list[SendingRecord] = []
        certain = [outgoing for outgoing in batch if outgoing.is_certain]
        looks = [outgoing for outgoing in batch if not outgoing.is_certain]
        for number, outgoing in enumerate(looks):
            try:
                reply = drive(self._store.load(outgoing.record.key), self._store)
            except Exception as error:
                if getattr(error, "transient", False):  # one failure, of however many records
                    self._failed([error])
                    return [*waiting, *looks[number:], *certain] if self._failures < _TRIES else waiting
                logger().warning("%s: its messages are left to a relay: %s", outgoing.record.key, describe(error))
            else:
                if outgoing.looked(reply.record):
                    waiting.append(outgoing)
        if not certain:
            self._works()
        return [*waiting, *self._noted(certain)]

    def _noted(self, batch: Sequence[SendingRecord]) -> list[SendingRecord]:
        if not batch:
            return []
        notes = [outgoing.note() for outgoing in batch]
        try:
            steps = note_many(self._store, notes, boottime, patience(boottime))
            outcomes: Sequence[Won | Lost | Exception] = drive(steps, self._store)
        except Exception as error:  # also a ledger that can only be awaited, and no loop runs
            outcomes = [error] * len(batch)
        errors = [one for one in outcomes if isinstance(one, Exception)]
        if errors:
            self._failed(errors)
        else:
            self._works()
        going_on = []
        for outgoing, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                if self._failures < _TRIES:
                    going_on.append(outgoing)
            elif outgoing.noted(outcome):
                going_on.append(outgoing)
        return going_on

"""Targets of tests, each with a scheme of its own."""

import itertools
import os
from collections import deque
from collections.abc import Sequence

from onceward import current
from onceward.outbox import register, sender
from onceward.outbox.targets import OutboxMessage

_SCHEMES = itertools.count()


class Box:
    """A target that keeps what is sent."""

    def __init__(self, batch=1):
        scheme = f"box{next(_SCHEMES)}"
        self.target = RecordedTarget(batch)
        register(scheme, lambda _: self.target)
        self.address = f"{scheme}:a"

    @property
    def bodies(self):
        return [message.body for message in self.target.sent]


def left_by_a_crash(once, monkeypatch, key, *messages):
    """Complete a key, and let the process die before it sends: each message is a target's address and a body."""

    def handle():
        for address, body in messages:
            current().send(address, body)

    with monkeypatch.context() as patch:
        patch.setattr(sender, "send_soon", lambda *told: True)
        once.run(key, handle)


def drained(seconds=5.0):
    assert sender.SENDER.drain(seconds) == 0


def record_of(once):
    ((record, _),) = once.ledger.records()
    return record


def place(box, *bodies):
    def handler():
        for body in bodies:
            current().send(box.address, body)
        return "placed"

    return handler


class JournalTarget:
    """Appends a line for each message to a file that several processes share: its key and its body."""

    batch = 10

    def __init__(self, address, path, before=lambda body: None):
        self._out = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        self._before = before

    def check(self, message):
        pass

    def send(self, messages):
        for message in messages:
            self._before(message.body)
            os.write(self._out, f"{message.key} {message.body}\n".encode())
        return [None] * len(messages)

    def close(self):
        pass


class RecordedTarget:
    def __init__(self, batch: int = 1) -> None:
        self.batch = batch
        self.sent: list[OutboxMessage] = []
        self.answers: deque[Exception | None] = deque()
        self.sends: list[list[str]] = []

    def check(self, message: OutboxMessage) -> None:
        """Refuse a body of "never", as a target refuses what it can never take."""
        if message.body == "never":
            raise ValueError("this target never takes a body of 'never'")

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Take the messages, or answer as planned."""
        assert len(messages) <= self.batch, f"{len(messages)} messages in one send, and the target takes {self.batch}"
        self.sends.append([message.key for message in messages])
        told: list[Exception | None] = []
        for message in messages:
            error = self.answers.popleft() if self.answers else None
            if error is None:
                self.sent.append(message)
            told.append(error)
        return told

    def close(self) -> None:
        """Do nothing."""

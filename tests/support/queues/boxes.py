"""Targets of tests, each with a scheme of its own."""

import itertools
import os

from onceward import current
from onceward.outbox import register, sender
from queues.recorded_target import RecordedTarget

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

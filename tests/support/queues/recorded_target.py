"""A target that keeps what is sent, for tests of handlers that send."""

from collections import deque
from collections.abc import Sequence

from onceward.outbox.targets import OutboxMessage


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

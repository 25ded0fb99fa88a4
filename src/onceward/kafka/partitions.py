"""The records of one partition in one worker: which wait, which are held, and how far all are done."""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from onceward.consumers.retry_topics import KafkaMessage


class Partition:
    """One assigned partition, from its assignment to its revocation.

    Attributes:
        held: how many messages are with the worker.
        revoked: whether it is another member's now. What is held is then nobody's business here.
        unsaid: whether more is done than was committed.
    """

    def __init__(self, *, ordered: bool) -> None:
        self.held = 0
        self.revoked = self.unsaid = False
        self._ordered = ordered
        self._waiting: list[tuple[float, int, KafkaMessage]] = []  # a heap: by time, or in order by offset alone
        self._offsets: deque[int] = deque()  # read, from the first one that is not done
        self._done: set[int] = set()
        self._next: int | None = None  # the offset after the last one read

    @property
    def waiting(self) -> int:
        """How many messages wait here."""
        return len(self._waiting)

    @property
    def span(self) -> int:
        """How many records were read since the first one that is not done."""
        return len(self._offsets)

    @property
    def committable(self) -> int | None:
        """The offset below which everything is done; None if nothing was read."""
        return self._offsets[0] if self._offsets else self._next

    def read(self, message: KafkaMessage, due: float | None) -> None:
        """Take in a record that was read, to be handled when it is due; None: it is not ours to handle."""
        offset = message.record.offset
        self._offsets.append(offset)
        self._next = offset + 1
        if due is None:
            self._pass(offset)
        else:
            self._wait(message, due)

    def take(self, most: int, now: float) -> Sequence[KafkaMessage]:
        """Return up to so many messages to handle now. In order: none before all that were taken are back."""
        if self._ordered and self.held:
            return []
        messages: list[KafkaMessage] = []
        while self._waiting and len(messages) < most and self._waiting[0][2].due <= now:
            messages.append(heappop(self._waiting)[2])
        self.held += len(messages)
        return messages

    @property
    def due(self) -> float | None:
        """When the next message can be taken; None if none can."""
        return None if not self._waiting or (self._ordered and self.held) else self._waiting[0][2].due

    def finish(self, message: KafkaMessage) -> None:
        """Count a held message as done."""
        self.held -= 1
        self._pass(message.record.offset)

    def _pass(self, offset: int) -> None:
        self._done.add(offset)
        while self._offsets and self._offsets[0] in self._done:
            self._done.remove(self._offsets.popleft())
            self.unsaid = True

    def put_back(self, message: KafkaMessage, due: float) -> None:
        """Put a message back into the partition's buffer."""
        self.held -= 1
        self._wait(message, due)

    def leave(self) -> None:
        """Hold a message no more that is not done: nothing is committed from there on."""
        self.held -= 1

    def _wait(self, message: KafkaMessage, due: float) -> None:
        place = 0.0 if self._ordered else due
        heappush(self._waiting, (place, message.record.offset, message._replace(due=due)))

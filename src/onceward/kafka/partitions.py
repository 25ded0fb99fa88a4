"""The records of one partition in one worker: which wait, which are held, and how far all are done."""

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from onceward.consumers.dead_letters import FROM, KEY_HEADER, OURS, RECEIVES, receives_in
from onceward.consumers.delivery import Delivery
from onceward.consumers.retry_topics import OF_RETRIES

SOURCE: Final = "kafka"


class KafkaMessage(NamedTuple):
    """A record as a worker holds it.

    Attributes:
        record: aiokafka's.
        partition: where it waits.
        receives: how often it was received.
        ours: whether it was read from a topic that only onceward sends to, so that our headers count.
    """

    record: Any
    partition: "Partition"
    receives: int
    ours: bool

    def header(self, name: str) -> str | None:
        """Return a header's text; the last one, if there are several."""
        for found, value in reversed(self.record.headers):
            if found == name:
                return value.decode(errors="backslashreplace") if isinstance(value, bytes) else None
        return None

    def told(self, name: str) -> str | None:
        """Return the text of one of our own headers; None if the record's sender wrote it."""
        return self.header(name) if self.ours else None

    @property
    def place(self) -> str:
        """Where it is: topic, partition and offset."""
        return f"{self.record.topic}/{self.record.partition}/{self.record.offset}"

    @property
    def origin(self) -> str:
        """The place and the timestamp of the first copy of the message. Offsets begin again when a topic is created again."""
        told = self.told(FROM) or ""
        return told if told.count("/") == 3 else f"{self.place}/{self.record.timestamp}"

    @property
    def partition_number(self) -> int:
        """The number of the partition where it was first."""
        number = self.origin.split("/")[-3]
        return int(number) if number.isdecimal() else 0

    def headers_with(self, ours: Mapping[str, str], *, dead: bool) -> list[tuple[str, bytes]]:
        """Return its sender's headers, and ours, for a copy; a dead letter has no header of an earlier one."""
        dropped = OF_RETRIES | OURS if dead else OF_RETRIES
        kept = [(name, value) for name, value in self.record.headers if name not in dropped]
        return [*kept, *((name, text.encode()) for name, text in ours.items())]

    def delivery(self, *, grouped: bool) -> Delivery:
        """Return it as a handler sees it. By default the key is its header, or else where it was first."""
        record = self.record
        made = Delivery(SOURCE, record)
        made.id, made.destination, made.header = self.place, record.topic, self.header
        made.key = self.header(KEY_HEADER) or tuple(self.origin.split("/"))
        made.group = f"{record.topic}-{record.partition}" if grouped else None
        made.body = record.value
        return made


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
        self._due: dict[int, float] = {}  # in order: when an offset may be tried again
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
        taken: list[KafkaMessage] = []
        while self._waiting and len(taken) < most and self._head_due <= now:
            taken.append(heappop(self._waiting)[2])
        self.held += len(taken)
        return taken

    @property
    def due(self) -> float | None:
        """When the next message can be taken; None if none can."""
        return None if not self._waiting or (self._ordered and self.held) else self._head_due

    @property
    def _head_due(self) -> float:
        due, offset, _ = self._waiting[0]
        return self._due.get(offset, 0.0) if self._ordered else due

    def finish(self, message: KafkaMessage) -> None:
        """Count a held message as done."""
        self.held -= 1
        self._pass(message.record.offset)

    def _pass(self, offset: int) -> None:
        self._done.add(offset)
        self._due.pop(offset, None)
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
        offset = message.record.offset
        if self._ordered:
            self._due[offset] = due
        heappush(self._waiting, (0.0 if self._ordered else due, offset, message))


def received(record: Any, partition: Partition, *, ours: bool) -> KafkaMessage:
    """Return a record that was just read as a message."""
    message = KafkaMessage(record, partition, 1, ours)
    return message._replace(receives=receives_in(message.told(RECEIVES)) + 1)

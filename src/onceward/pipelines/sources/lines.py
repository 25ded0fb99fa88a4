"""Files as a queue: their lines go to the worker of all brokers. ``onceward pipe``'s own reader brings the lines."""

import asyncio
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

from msgspec import Meta

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.broker import Broker, BrokerError
from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.consumers.stop import Stop
from onceward.core.clock import boottime
from onceward.core.policy import Policy
from onceward.keys.json_reading import NotJson
from onceward.pipe.engine import WAIT_BEYOND
from onceward.pipe.lines import LONGEST, STDIN, Line, Lines, Rejects, read_line
from onceward.pipelines.contract import Runs, SourceSettings
from onceward.pipelines.flow import Flow, FlowWorker
from onceward.pipelines.kit import Kit

_AHEAD: Final = 1000  # lines in memory that no worker has taken
_LOOK_AGAIN: Final = 1.0  # seconds until a busy key is tried again, at most


class LineRecord:
    """One line, or one row.

    Attributes:
        size: bytes that it takes in memory.
        receives: how often it was tried in this run.
    """

    __slots__ = ("delivery", "receives", "size")

    def __init__(self, delivery: Delivery, size: int) -> None:
        self.delivery, self.size = delivery, size
        self.receives = 0


class LinesBroker(Broker[LineRecord]):
    """Lines as messages. Each is tried once in a run; a line whose key another worker has is tried until that lease is over."""

    most = 100
    dead_letters = "broker"  # lines that failed stay in their file

    def __init__(self, name: str, records: Iterable[LineRecord], stop: Stop) -> None:
        self.name = name
        self._records: Iterator[LineRecord] = iter(records)
        self._stop = stop
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._fresh: deque[LineRecord] = deque()
        self._bytes = 0
        self._again: list[tuple[float, LineRecord]] = []
        self._out = 0  # lines that the worker holds
        self._ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy: set[object] = set()  # ids of lines that were not begun just now
        self._over: set[object] = set()  # ids of lines whose outcome was told, and which the worker still holds
        self._give_up: dict[object, float] = {}  # id of a line → until when to wait for another worker that has its key
        self.lease = 60.0

    async def open(self, policy: Policy) -> Policy:
        self.lease = policy.lease
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="onceward-lines", daemon=True).start()
        return policy

    async def receive(self, count: int) -> Sequence[LineRecord]:
        while True:
            self._changed.clear()
            taken = self._take(count)
            if taken or self._stop.asked:
                self._out += len(taken)
                return taken
            if self._ended and not (self._fresh or self._again or self._out):
                if self._error is not None:
                    raise BrokerError(f"{self.name}: {self._error}", gone=True) from self._error
                return ()
            next_due = min((due for due, _ in self._again), default=None)
            try:
                async with asyncio.timeout(None if next_due is None else max(0.0, next_due - boottime())):
                    await self._changed.wait()
            except TimeoutError:
                pass  # one is due

    def delivery(self, message: LineRecord) -> Delivery:
        return message.delivery

    def receives(self, message: LineRecord) -> int:
        return message.receives

    def acknowledge(self, message: LineRecord) -> None:
        self._over.discard(message.delivery.id)
        self._give_up.pop(message.delivery.id, None)
        self._out -= 1
        self._changed.set()

    def give_back(self, message: LineRecord, seconds: float = 0.0) -> None:
        line = message.delivery.id
        if line in self._busy and not self._stop.asked:
            self._busy.discard(line)
            self._again.append((boottime() + min(max(seconds, 0.05), _LOOK_AGAIN), message))
        elif line not in self._over and not self._stop.asked:
            self._error = self._error or RuntimeError(f"line {line} has no outcome, as the log tells: run this again")
        self._over.discard(line)
        self._out -= 1
        self._changed.set()

    def leave(self, message: LineRecord) -> None:
        self.acknowledge(message)

    def waits(self, outcome: BatchOutcome, message_id: object) -> bool:
        """Return whether a line that was not begun will be tried again in this run."""
        now = boottime()
        waits = outcome.status in {"busy", "deferred"} and not self._stop.asked
        waits = waits and now < self._give_up.setdefault(message_id, now + self.lease + WAIT_BEYOND)
        (self._busy if waits else self._over).add(message_id)
        return waits

    def stop(self) -> None:
        self._stop.ask()
        with self._lock:
            self._room.notify_all()
        self._wake()

    async def close(self) -> None:
        self.stop()

    def _take(self, count: int) -> list[LineRecord]:
        now, taken = boottime(), []
        for one in [one for one in self._again if one[0] <= now][:count]:
            self._again.remove(one)
            taken.append(one[1])
        with self._lock:
            while self._fresh and len(taken) < count:
                record = self._fresh.popleft()
                self._bytes -= record.size
                taken.append(record)
            self._room.notify_all()
        for record in taken:
            record.receives += 1
        return taken

    def _read(self) -> None:
        try:
            for record in self._records:
                with self._lock:
                    while not self._stop.asked and (len(self._fresh) >= _AHEAD or self._bytes > 2 * LONGEST):
                        self._room.wait(0.1)
                    if self._stop.asked:
                        return
                    self._fresh.append(record)
                    self._bytes += record.size
                    wake = len(self._fresh) == 1
                if wake:
                    self._wake()
        except Exception as error:  # raised in receive()
            self._error = error
        finally:
            self._ended = True
            self._wake()

    def _wake(self) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            pass  # the event loop is closed


class LinesWorker(FlowWorker[LineRecord]):
    """Handles the lines of files."""

    lines: LinesBroker

    def told(self, outcome: BatchOutcome) -> None:
        """Tell of a line, unless it is tried again in this run."""
        delivery = outcome.record
        assert isinstance(delivery, Delivery)
        if self.lines.waits(outcome, delivery.id):
            super(FlowWorker, self).told(outcome)
        else:
            super().told(outcome)


class LineSource(SourceSettings, kw_only=True):
    """Files of lines, or the standard input.

    Attributes:
        files: The files; - is the standard input. Relative paths begin at the folder of this file.
        rejects: A file that malformed lines are appended to.
    """

    files: Annotated[list[str], Meta(min_length=1)]
    rejects: str | None = None

    has_ids = False
    ends = True

    def check(self, kit: "Kit") -> None:
        seen: set[str] = set()
        try:
            if self.rejects is not None and not (kit.folder / self.rejects).parent.is_dir():
                kit.mistake("rejects", f"{self.rejects}: its folder does not exist")
        except OSError as error:
            kit.mistake("rejects", f"this is no file: {error}")
        for number, name in enumerate(self.files):
            path = kit.folder / name
            try:
                same = name if name == STDIN else str(path.resolve())
                if name != STDIN and not path.is_file():
                    kit.mistake(
                        ("files", number), f"{name}: {'a directory' if path.is_dir() else 'there is no such file'}"
                    )
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
                kit.mistake(("files", number), f"this is no file: {error}")
                continue
            if same in seen:
                kit.mistake(("files", number), f"{name} is here twice")
            seen.add(same)

    @abstractmethod
    def records(self, lines: Lines, rejects: Rejects) -> "Iterator[LineRecord]":
        """Yield the record of each line."""

    def open(self, flow: "Flow") -> "Runs":
        folder = flow.folder
        stop, rejects = Stop(), Rejects(None if self.rejects is None else str(folder / self.rejects))
        lines = Lines([name if name == STDIN else str(folder / name) for name in self.files], stop, rejects.add)
        broker = LinesBroker(", ".join(self.files), self.records(lines, rejects), stop)
        worker = LinesWorker(flow.once, broker, flow.handler, **flow.options)
        worker.flow, worker.lines = flow, broker
        flow.progress = lambda: (lines.read, lines.total)
        return worker


class NdjsonSource(LineSource):
    """Lines of JSON. A line that is no JSON is malformed; the others go on.

    Several lines run at a time. With `concurrency: 1` they run in their order.
    """

    def records(self, lines: Lines, rejects: Rejects) -> "Iterator[LineRecord]":
        for line in lines:
            if line.data is not None and not line.data.strip():
                continue
            delivery = delivery_of("ndjson", line)
            if line.data is not None:
                try:
                    delivery.data = read_line(line.data)
                except NotJson as error:
                    delivery.fault = MalformedRecord(f"the payload is {error}")
                    rejects.add(line.data if line.data.endswith(b"\n") else line.data + b"\n")
            yield recorded(delivery, line)


def delivery_of(source: str, line: Line) -> Delivery:
    """Return the delivery of a line, without its data."""
    delivery = Delivery(source, {"file": line.file, "line": line.number})
    delivery.id = f"{line.file}:{line.number}"
    delivery.body = line.data
    if line.data is None:
        delivery.fault = MalformedRecord(f"longer than {LONGEST} bytes")
    return delivery


def recorded(delivery: Delivery, line: Line) -> "LineRecord":
    """Return a line as the broker has it."""
    return LineRecord(delivery, len(line.data or b""))

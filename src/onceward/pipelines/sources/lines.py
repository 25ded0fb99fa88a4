"""Files as a queue: their lines go to the worker of all brokers. ``onceward pipe``'s own reader brings the lines."""

import asyncio
import csv
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, groupby
from typing import Annotated, Final, cast

from msgspec import Meta

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.broker import Broker, BrokerError
from onceward.consumers.callers import comes
from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.consumers.stop import Stop
from onceward.core.clock import boottime
from onceward.core.policy import Policy
from onceward.keys.json_reading import NotJson, read_json
from onceward.pipe.engine import WAIT_BEYOND
from onceward.pipe.lines import LONGEST, STDIN, Line, Lines
from onceward.pipelines.flow import Flow, FlowWorker, Runs, SourceSettings
from onceward.pipelines.kit import Kit

_AHEAD: Final = 1000  # lines in memory that no worker has taken
_LOOK_AGAIN: Final = 1.0  # seconds until a busy key is tried again, at most


class LineDelivery(Delivery):
    """One line.

    Attributes:
        receives: how often it was tried in this run.
        waits: whether it is tried again in this run; None before its outcome is told.
        give_up: until when to wait for another worker that has its key.
    """

    __slots__ = ("give_up", "receives", "waits")

    def __init__(self, source: str, line: Line) -> None:
        super().__init__(source, {"file": line.file, "line": line.number})
        self.id = f"{line.file}:{line.number}"
        self.body = line.data
        self.receives, self.give_up = 0, 0.0
        self.waits: bool | None = None


class LinesBroker(Broker[LineDelivery]):
    """Lines as messages. Each is tried once in a run; a line whose key another worker has is tried until that lease is over."""

    most = 100
    dead_letters = "broker"  # lines that failed stay in their file
    lease = 60.0

    def __init__(self, name: str, lines: Iterator[LineDelivery], stop: Stop) -> None:
        self.name, self._lines, self._stop = name, lines, stop
        self._fresh: deque[LineDelivery] = deque()
        self._bytes = 0
        self._room = threading.Condition()  # of these two
        self._again: list[tuple[float, LineDelivery]] = []
        self._out = 0  # lines that the worker holds
        self._ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    async def open(self, policy: Policy) -> Policy:
        self.lease = policy.lease
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="onceward-lines", daemon=True).start()
        return policy

    async def receive(self, count: int) -> Sequence[LineDelivery]:
        while True:
            lines = self._take(count)
            if lines or self._stop.asked:
                self._out += len(lines)
                return lines
            if self._ended and not (self._fresh or self._again or self._out):
                if self._error is not None:
                    raise BrokerError(f"{self.name}: {self._error}", gone=True) from self._error
                return ()
            next_due = min((due for due, _ in self._again), default=None)
            await comes(self._changed, None if next_due is None else max(0.0, next_due - boottime()))

    def delivery(self, message: LineDelivery) -> Delivery:
        return message

    def receives(self, message: LineDelivery) -> int:
        return message.receives

    def acknowledge(self, message: LineDelivery) -> None:
        self._out -= 1
        self._changed.set()

    def give_back(self, message: LineDelivery, seconds: float = 0.0) -> None:
        if message.waits and not self._stop.asked:
            message.waits = None
            self._again.append((boottime() + min(max(seconds, 0.05), _LOOK_AGAIN), message))
        elif message.waits is None and not self._stop.asked:
            text = f"line {message.id} has no outcome, as the log tells: run this again"
            self._error = self._error or RuntimeError(text)
        self.acknowledge(message)

    def leave(self, message: LineDelivery) -> None:
        self.acknowledge(message)

    def waits(self, outcome: BatchOutcome) -> bool:
        """Return whether a line that was not begun will be tried again in this run."""
        line, now = cast("LineDelivery", outcome.record), boottime()
        line.give_up = line.give_up or now + self.lease + WAIT_BEYOND
        line.waits = outcome.status in {"busy", "deferred"} and now < line.give_up and not self._stop.asked
        return line.waits

    def stop(self) -> None:
        self._stop.ask()
        self._changed.set()

    async def close(self) -> None:
        self._stop.ask()

    def _take(self, count: int) -> list[LineDelivery]:
        now, lines = boottime(), []
        for one in [one for one in self._again if one[0] <= now][:count]:
            self._again.remove(one)
            lines.append(one[1])
        with self._room:
            while self._fresh and len(lines) < count:
                line = self._fresh.popleft()
                self._bytes -= len(line.body or b"")
                lines.append(line)
            self._room.notify()
        for line in lines:
            line.receives += 1
        return lines

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        def wake() -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._changed.set)

        try:
            for line in self._lines:
                with self._room:
                    while not self._stop.asked and (len(self._fresh) >= _AHEAD or self._bytes > 2 * LONGEST):
                        self._room.wait(0.1)
                    if self._stop.asked:
                        return
                    self._fresh.append(line)
                    self._bytes += len(line.body or b"")
                    is_first = len(self._fresh) == 1
                if is_first:
                    wake()
        except Exception as error:  # raised in receive()
            self._error = error
        finally:
            self._ended = True
            wake()


class LinesWorker(FlowWorker[LineDelivery]):
    """Handles the lines of files."""

    lines: LinesBroker

    def told(self, outcome: BatchOutcome) -> None:
        """Tell of a line, unless it is tried again in this run."""
        if self.lines.waits(outcome):
            super(FlowWorker, self).told(outcome)
        else:
            super().told(outcome)


class NdjsonSource(SourceSettings):
    """Lines of JSON. A line that is no JSON is malformed; the others go on.

    Several lines run at a time. With `concurrency: 1` they run in their order.

    Attributes:
        files: The files; - is the standard input. Relative paths begin at the folder of this file.
    """

    files: Annotated[list[str], Meta(min_length=1)]

    has_ids = False
    ends = True

    def check(self, kit: "Kit") -> None:
        for number, name in enumerate(self.files):
            with kit.noting(("files", number), OSError, ValueError):
                if name != STDIN and not (kit.folder / name).is_file():
                    raise ValueError(f"{name}: there is no such file")

    def open(self, flow: "Flow") -> "Runs":
        folder = flow.built.folder
        stop = Stop()
        lines = Lines([name if name == STDIN else str(folder / name) for name in self.files], stop)
        broker = LinesBroker(", ".join(self.files), self.deliveries(lines), stop)
        worker = LinesWorker(flow.built.once, broker, flow.handler, **flow.options)
        worker.flow, worker.lines = flow, broker
        return worker

    def deliveries(self, lines: Iterable[Line]) -> Iterator[LineDelivery]:
        """Yield each message."""
        for line in lines:
            if line.data.strip():
                delivery = LineDelivery("ndjson", line)
                try:
                    delivery.data = read_json(line.data)
                except NotJson as error:
                    delivery.fault = MalformedRecord(f"the payload is {error}")
                yield delivery


class CsvSource(NdjsonSource, kw_only=True):
    """Rows of CSV as objects: the first row of each file names the fields, and all values are text.

    A row with wrong quotes, or with more or fewer values than the first, is malformed; the others go on. A last row
    without a line break is malformed, too, because its writer may not have finished it.

    Attributes:
        separator: The character between two values.
    """

    separator: Annotated[str, Meta(pattern='^[^"\r\n]$')] = ","

    def deliveries(self, lines: Iterable[Line]) -> Iterator[LineDelivery]:
        place = count()
        for _, of_file in groupby(lines, lambda line: next(place) - line.number):
            rows = self._rows(of_file)
            names = self._names(next(rows, None))
            for row in rows:
                delivery = LineDelivery("csv", row)
                try:
                    values = self._values(row)
                    if len(values) != len(names):
                        raise ValueError(f"{len(values)} values, and the first row names {len(names)} fields")
                    delivery.data = dict(zip(names, values, strict=True))
                except ValueError as error:
                    delivery.fault = MalformedRecord(f"not a row of CSV: {error}")
                yield delivery

    def _rows(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield each row as one line, because a quoted value can take several. Of wrong quotes it finds the end, too."""
        taken: list[Line] = []

        def texts() -> Iterator[str]:
            for line in lines:
                taken.append(line)
                yield line.data.decode("utf-8-sig", errors="replace").replace("\r", "")

        try:
            for values in csv.reader(texts(), delimiter=self.separator):
                if values:
                    yield taken[0]._replace(data=b"".join(line.data for line in taken))
                taken.clear()
        except csv.Error as error:
            raise OSError(
                f"{taken[0].file}: line {taken[0].number}: {error}: close its quotes, or take it out"
            ) from error

    def _names(self, row: Line | None) -> list[str]:
        if row is None:
            return []  # of an empty file
        try:
            names = self._values(row)
            if len(set(names)) < len(names):
                raise ValueError("a field is there twice")
        except ValueError as error:
            raise ValueError(f"{row.file}: its first row, which names the fields: {error}") from error
        return names

    def _values(self, row: Line) -> list[str]:
        """Return the values of a row; raises ValueError."""
        if not row.data.endswith(b"\n"):
            raise ValueError("it may be cut off: if it is complete, end it with a line break")
        try:
            return next(csv.reader([row.data.decode("utf-8-sig")], delimiter=self.separator, strict=True))
        except csv.Error as error:
            raise ValueError(str(error)) from error

"""The source ``ndjson``."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.consumers.stop import Stop
from onceward.keys.json_reading import NotJson
from onceward.pipe.lines import LONGEST, STDIN, Line, Lines, Rejects, read_line
from onceward.pipelines.contract import Runs, SourceSettings
from onceward.pipelines.flow import Flow
from onceward.pipelines.kit import Kit
from onceward.pipelines.sources.lines import LineRecord, LinesBroker, LinesWorker


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

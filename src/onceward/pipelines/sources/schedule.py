"""The source ``schedule``: one message in each window of time, by the ledger's clock."""

import asyncio
import datetime as dt
import math
from functools import partial
from typing import Any, Final, NamedTuple

from onceward.batch.windows import Windows
from onceward.consumers.callers import unless_set
from onceward.consumers.dead_letters import is_unhandled
from onceward.consumers.delivery import Delivery
from onceward.consumers.reader import DeliveryReader
from onceward.core.comparisons import meets
from onceward.core.record import Reply
from onceward.core.views import Criteria
from onceward.keys.ledger_keys import ledger_key
from onceward.observe.logs import logger
from onceward.pipelines.flow import Flow, FlowRuns, Runs, SourceSettings
from onceward.pipelines.kit import Kit
from onceward.pipelines.settings import Seconds

SOURCE: Final = "schedule"
_LONGEST: Final = 60.0  # seconds until the ledger is asked again, as clocks drift
_BEFORE: Final = 100  # windows that a start looks at
_HALF_DONE: Final = Criteria(("IN_PROGRESS", "RELEASED")).clause


class EvenCalendar(NamedTuple):
    """Windows of one length. Times are seconds since 1970."""

    every: float

    def last(self, now: float) -> float:
        """Return when the window of ``now`` began."""
        return math.floor(now / self.every) * self.every

    def next(self, now: float) -> float:
        """Return when the next window begins."""
        return self.last(now) + self.every


class CronCalendar:
    """Windows that begin when an expression of cron says so, in UTC."""

    def __init__(self, expression: str) -> None:
        from croniter import CroniterError, croniter

        fields = expression.lower().split()
        if len(fields) != 5:
            raise ValueError(f"{expression!r}: give five fields, as in 0 3 * * 1-5")
        if any(part.startswith("r") for field in fields for part in field.split(",")):
            raise ValueError(f"{expression!r} is random, so each machine would run at another time: give fixed times")
        try:
            self._cron = croniter(expression, 0.0)
            self._cron.get_next()
        except CroniterError as error:
            raise ValueError(f"{expression!r} is not a cron expression: {error}") from error

    def last(self, now: float) -> float:
        """Return when the window of ``now`` began."""
        return float(self._cron.get_prev(start_time=float(math.floor(now) + 1)))

    def next(self, now: float) -> float:
        """Return when the next window begins."""
        return float(self._cron.get_next(start_time=float(math.floor(now))))


class ScheduleSource(SourceSettings):
    """One message in each window of time, however many machines run the pipeline. The ledger's clock counts.

    The message has the fields window (the window's start as text in UTC) and data. Its key is the start. A window can run late.

    Attributes:
        every: How long a window is, as in 15m, 1h or 1d. These windows begin on the quarter hour, on the hour, at midnight UTC.
        cron: When a window begins, as five fields of cron in UTC: 0 3 * * 1-5 is 3:00 UTC on weekdays.
        late: How late a window can begin. A later window is skipped. By default a window can begin until the next one begins.
        data: The value of the message's field data.
    """

    every: Seconds | None = None
    cron: str | None = None
    late: Seconds | None = None
    data: Any = None

    def check(self, kit: "Kit") -> None:
        if (self.every is None) is (self.cron is None):
            kit.mistake("", "give every: as in 15m, or cron: as in 0 3 * * *")
            return
        if self.cron is not None and not kit.needs("cron", "croniter", "pipelines"):
            return
        with kit.noting("every" if self.cron is None else "cron"):
            self.calendar()

    def calendar(self) -> EvenCalendar | CronCalendar:
        """Return when windows begin; raises ValueError if that is not valid."""
        if self.cron is not None:
            return CronCalendar(self.cron)
        return EvenCalendar(Windows(self.every or 0).seconds)

    def open(self, flow: Flow) -> "Runs":
        return ScheduleRuns(self, flow)


class ScheduleRuns(FlowRuns):
    """One run of the source."""

    def __init__(self, settings: ScheduleSource, flow: Flow) -> None:
        super().__init__(flow)
        self._calendar, self._data = settings.calendar(), settings.data
        self._late = math.inf if settings.late is None else settings.late
        self._running: set[float] = set()  # the starts of windows

    async def run_async(self, *, until_empty: bool = False) -> None:
        """Run until :meth:`stop`; with ``until_empty`` only the window of now."""
        self.begin()
        try:
            if not self.stopping.is_set():
                await unless_set(self.stopping, self._windows(until_empty=until_empty))
            await self.tasks.end(self.grace)
        finally:
            await self.tasks.end(0.0)  # their keys stay claimed, and lapse

    async def _windows(self, *, until_empty: bool) -> None:
        """Begin each window."""
        last_start: float | None = None
        while True:
            await self.flow.ready()
            now = await self._now()
            start = self._calendar.last(now)
            if start != last_start:
                in_time = now - start <= self._late
                if in_time:
                    self._begin(start)
                if not in_time or self._calendar.last(start - 1e-3) != last_start:  # this one slept over a window
                    await self._resume(start)
                last_start = start
            if until_empty:
                await self.tasks.end()  # none, if the window is too old to begin
                return
            await asyncio.sleep(min(max(self._calendar.next(now) - now, 0.0) + 0.001, _LONGEST))

    async def _now(self) -> float:
        return (await self._load("now")).now  # a key that nothing has

    async def _load(self, key: object) -> Reply:
        return await self.flow.load(ledger_key(self.name, key))

    async def _resume(self, start: float) -> None:
        """Begin this window and those before it that another run has left half done. They can have failed for hours."""
        keys = set[object]()
        for _ in range(1 + _BEFORE):
            if start < 0 or (key := self._key(start)) in keys:
                return  # dates end somewhere; or windows share a key
            keys.add(key)
            reply = await self._load(key)
            half_done = reply.record is not None and meets(reply.record, _HALF_DONE, reply.now)
            if half_done:
                self._begin(start)  # also if it is too late for a window to begin
            start = self._calendar.last(start - 1e-3)
        if half_done:
            logger().warning(
                "pipeline %s: windows before the last %d may be half done, and stay so", self.name, 1 + _BEFORE
            )

    def _key(self, start: float) -> object:
        reading = DeliveryReader(self.flow.handler, self.flow.options.get("key"), None)
        return reading.read(self._delivery(start)).key

    def _begin(self, start: float) -> None:
        if start not in self._running:  # else the ledger's clock was set back
            self._keep(start)
            self._running.add(start)
            self.tasks.begin(self._handle(start))

    def _keep(self, start: float) -> None:
        """Let the record of a window stay until the next one is over: a start of the program looks for both."""
        after = self._calendar.next(start)
        if self._key(start) != self._key(after):  # else windows share a key, and its retention is meant to end
            built = self.flow.built
            built.least_retention = max(built.least_retention, self._calendar.next(after) - start)

    async def _handle(self, start: float) -> None:
        """Run a window. After a stop its key is given back, and the next start finds it."""
        try:
            outcome = await self.handled(partial(self._delivery, start))
            if is_unhandled(outcome):
                logger().error("pipeline %s: the window of %s is %s", self.name, _text(start), outcome.status)
        finally:
            self._running.discard(start)

    def _delivery(self, start: float) -> Delivery:
        window = _text(start)
        delivery = Delivery(SOURCE, {"window": window})
        delivery.id = delivery.key = window
        delivery.data = {"window": window, "data": self._data}
        return delivery


def _text(start: float) -> str:
    """Return the start of a window as ISO 8601 in UTC."""
    return dt.datetime.fromtimestamp(start, dt.UTC).isoformat().removesuffix("+00:00") + "Z"

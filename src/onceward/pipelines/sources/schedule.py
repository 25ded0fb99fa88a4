"""The source ``schedule``."""

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from onceward.pipelines.settings import Seconds
from onceward.pipelines.sources.contract import SourceSettings

if TYPE_CHECKING:
    from onceward.pipelines.flow import Flow
    from onceward.pipelines.kit import Kit
    from onceward.pipelines.sources.calendars import Calendar
    from onceward.pipelines.sources.contract import Runs


class ScheduleSource(SourceSettings, kw_only=True):
    """One message in each window of time, however many machines run the pipeline. The ledger's clock counts.

    The message has window, its start as text in UTC, and data. The start is its own key. A window that has begun is run, also late.
    """

    every: Annotated[
        Seconds | None,
        Meta(
            description="How long a window is, as in 15m, 1h or 1d. They begin on the quarter, on the hour, at midnight UTC."
        ),
    ] = None
    offset: Annotated[
        Seconds, Meta(description="With every: how much later windows begin, as in 30m for half past.")
    ] = 0
    cron: Annotated[
        str | None, Meta(description="When a window begins, as five fields of cron: 0 3 * * 1-5 is 3:00 on weekdays.")
    ] = None
    timezone: Annotated[str, Meta(description="With cron: its time zone, as in Europe/Zurich.")] = "UTC"
    late: Annotated[
        Seconds | None,
        Meta(description="How late a window can be begun; then it is left out. By default until the next one begins."),
    ] = None
    data: Annotated[Any, Meta(description="What each message has as data.")] = None

    def check(self, kit: "Kit") -> None:
        if (self.every is None) is (self.cron is None):
            kit.mistake("", "give every: as in 15m, or cron: as in 0 3 * * *")
            return
        if self.late is not None:
            kit.seconds("late", self.late)
        if self.cron is None:
            kit.seconds("offset", self.offset)
            kit.seconds("every", self.every or 0)
        elif not kit.needs("cron", "croniter", "pipelines"):
            return
        try:
            self.calendar()
        except ValueError as error:
            kit.mistake("every" if self.cron is None else "cron", str(error))

    def calendar(self) -> "Calendar":
        """Return when windows begin; raises ValueError if that is not valid."""
        from onceward.pipelines.sources.calendars import CronCalendar, EvenCalendar

        if self.cron is not None:
            return CronCalendar(self.cron, self.timezone)
        return EvenCalendar(self.every or 0, self.offset)

    def open(self, flow: "Flow") -> "Runs":
        from onceward.pipelines.sources.windows import ScheduleRuns

        return ScheduleRuns(self, flow)

"""When the windows of the source ``schedule`` begin. Times are seconds since 1970."""

import datetime as dt
import math
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from onceward.batch.windows import Windows

_ABOUT: Final = range(-2, 3)  # days around a moment; no clock is put on or back by more than one
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY: Final = 86400.0  # seconds


class EvenCalendar:
    """Windows of one length. The window of any moment before the next start is that of the last one."""

    def __init__(self, every: float) -> None:
        self._length = every
        Windows(every)  # checks it

    def last(self, now: float) -> float:
        """Return when the window of ``now`` began."""
        return math.floor(now / self._length) * self._length

    def next(self, now: float) -> float:
        """Return when the next window begins."""
        return self.last(now) + self._length


class CronCalendar:
    """Windows that begin when an expression of cron says so, by the clocks on the walls of a time zone.

    When these are put on or back, hours that are given as numbers happen once. An hour that comes twice counts the first time. An
    hour that is left out begins with the hour after it. With ``*`` for the hour, windows go on as time does. So does cron of Vixie.
    croniter itself goes back by days there.
    """

    def __init__(self, expression: str, zone: str) -> None:
        from croniter import CroniterError, croniter

        fields = expression.lower().split()
        if len(fields) != 5:
            raise ValueError(f"{expression!r}: give five fields, as in 0 3 * * 1-5")
        if any(part.startswith("r") for field in fields for part in field.split(",")):
            raise ValueError(f"{expression!r} is random, so each machine would run at another time: give fixed times")
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"there is no time zone {zone!r}") from error
        try:
            self._cron = croniter(expression, 0.0)
            self._cron.get_next()
        except CroniterError as error:
            raise ValueError(f"{expression!r} is not a cron expression: {error}") from error
        self._any_hour = fields[1].startswith("*") or self._cron.expanded[1] == ["*"]

    def last(self, now: float) -> float:
        """Return when the window of ``now`` began."""
        spread = self._spread(now)
        self._cron.set_current(float(math.floor(self._wall(now) + spread) + 1))
        moment = wall = -math.inf
        while moment == -math.inf or wall > self._wall(moment) - spread:
            wall = self._cron.get_prev()
            moment = max([moment, *(at for at in self._moments(wall) if at <= now)])
        return moment

    def next(self, now: float) -> float:
        """Return when the next window begins."""
        spread = self._spread(now)
        self._cron.set_current(float(math.floor(self._wall(now) - spread)))
        moment = wall = math.inf
        while moment == math.inf or wall < self._wall(moment) + spread:
            wall = self._cron.get_next()
            moment = min([moment, *(at for at in self._moments(wall) if at > now)])
        return moment

    def _moments(self, wall: float) -> list[float]:
        """Return when a window begins that begins at this time of the walls: once, twice or not at all."""
        local = _EPOCH + dt.timedelta(seconds=wall)
        first, second = (local.replace(tzinfo=self._zone, fold=fold).timestamp() for fold in (0, 1))
        if self._wall(first) == wall:
            return [first, second] if self._any_hour else [first]
        return [] if self._any_hour else [self._change(second, first)]  # no clock shows it

    def _change(self, before: float, after: float) -> float:
        """Return when the clocks are put on between these two."""
        changed = self._offset(after)
        while after - before > 1:
            middle = (before + after) // 2
            before, after = (before, middle) if self._offset(middle) == changed else (middle, after)
        return after

    def _spread(self, now: float) -> float:
        """Return by how many seconds the clocks are put on or back about this moment."""
        offsets = [self._offset(now + days * _DAY) for days in _ABOUT]
        return max(offsets) - min(offsets)

    def _wall(self, moment: float) -> float:
        """Return the time that clocks show then, as seconds since they showed 1970."""
        return moment + self._offset(moment)

    def _offset(self, moment: float) -> float:
        """Return how many seconds the zone's clocks are ahead of UTC then."""
        offset = dt.datetime.fromtimestamp(moment, self._zone).utcoffset()
        return 0.0 if offset is None else offset.total_seconds()

"""Runs a job once per window of time, for jobs that several machines or schedules start.

The window comes from the ledger's clock, never the worker's. All workers share it, so a wrong wall clock starts nothing
twice. Windows are aligned to the epoch (1970-01-01T00:00:00Z): ``"1h"`` begins on the hour, ``"1d"`` at midnight UTC.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import Any, Final

from onceward.claim.factory import GuardFactory, refuse_guarded
from onceward.claim.guard import Guard
from onceward.claim.handler import Handler
from onceward.core import retries
from onceward.core.arguments import seconds
from onceward.core.clock import Clock
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.policy import Options
from onceward.core.record import Reply
from onceward.core.register import Register
from onceward.errors import KeyMissing
from onceward.keys.ledger_keys import ledger_key
from onceward.keys.signatures import CallReader, without

At = str | Callable[..., object] | datetime | float
Function = Callable[..., object]
WindowKey = Callable[[tuple[object, ...], Mapping[str, object]], Steps[str]]  # of a call's arguments

_LONGEST: Final = 1e9  # seconds, thirty years
_EARLY: Final = 60.0  # at most this many seconds before an edge belong to the next window
_EARLY_PART: Final = 20  # and at most one in so many parts of a window
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Windows:
    """Windows of time, one after another; the arguments are those of :meth:`Once.per`."""

    def __init__(self, window: str | float, offset: float = 0.0) -> None:
        self.seconds = _seconds(window)
        if type(offset) not in {int, float} or not abs(offset) <= _LONGEST:
            raise ValueError(f"offset={offset!r}: give a number of seconds, as in offset=1800 for half past")
        self._length = round(self.seconds * 1e6)  # in microseconds, whose sums are exact
        self._offset = round(offset * 1e6)

    def early(self, resolution: float) -> float:
        """Return how many seconds before an edge belong to the next window, if the clock may be off by ``resolution``."""
        # Cron starts jobs at the edge by its machine's clock, which may be ahead of the ledger's. Without this, a job would
        # find the old window done and skip the new one.
        return min(self.seconds / _EARLY_PART, _EARLY) + resolution

    def moment(self, now: float, resolution: float) -> datetime:
        """Return the moment whose window a job belongs to that begins at ``now`` by the ledger's clock."""
        return _EPOCH + timedelta(seconds=now + self.early(resolution))

    def start(self, moment: datetime) -> str:
        """Return the start of the window of ``moment``, as ISO 8601 in UTC."""
        passed = (moment - _EPOCH) // _MICROSECOND - self._offset
        start = _EPOCH + (passed - passed % self._length + self._offset) * _MICROSECOND
        return start.isoformat().removesuffix("+00:00") + "Z"


def keyed_by_window(
    guards: GuardFactory, windows: Windows, name: str | None, at: At | None, options: Options
) -> Callable[[Function], tuple[Guard, WindowKey, Handler]]:
    """Return what makes the guard of a function, and finds the key of a call; the arguments are those of :meth:`Once.per`."""
    when = at if at is None or isinstance(at, str) or callable(at) else _moment(at)
    keep = options.get("retention", guards.defaults.retention)
    lasting: Options = {**options, "retention": None if keep is None else max(keep, 2 * windows.seconds)}
    store, least = guards.store, 10 * guards.store.resolution
    if windows.seconds < least:
        raise ValueError(
            f"windows of {windows.seconds:g} s are too short for {store.url}, whose clock counts in steps of {store.resolution:g} s: give "
            f"at least {least:g} seconds"
        )

    def keyed(function: Function) -> tuple[Guard, WindowKey, Handler]:
        refuse_guarded(function)
        guard, handler = guards.for_function(function, guards.apart(name, function), lasting)
        space, store, clock = guard.name, guard.store, guard.clock
        check = guards.class_check(name, guard, function)
        source = (
            None
            if when is None or isinstance(when, datetime)
            else CallReader(function, when, None, handler.claim, option="at")
        )

        def key(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Steps[str]:
            if check is not None:
                check(args)
            if source is not None:
                moment = _moment(source.read(args, kwargs)[0])
            elif isinstance(when, datetime):
                moment = when
            else:
                moment = windows.moment((yield from looking(store, space, clock)).now, store.resolution)
            return ledger_key(space, windows.start(moment))

        return guard, key, handler

    return keyed


def per_window(keyed: Callable[[Function], tuple[Guard, WindowKey, Handler]], function: Any) -> Any:
    """Return ``function``, guarded per window."""
    if isinstance(function, classmethod | staticmethod):
        return type(function)(per_window(keyed, function.__func__))
    guard, key, handler = keyed(function)
    store = guard.store

    async def call_async(*args: object, **kwargs: object) -> object:
        return await guard.call_async(await drive_async(key(args, kwargs), store), None, function, args, kwargs)

    def call(*args: object, **kwargs: object) -> object:
        return guard.call(drive(key(args, kwargs), store), None, function, args, kwargs)

    wrapper = wraps(function)(call_async if handler.is_async else call)
    vars(wrapper)["__signature__"] = without(function, handler.claim)
    return wrapper


def looking(store: Register, name: str, clock: Clock) -> Steps[Reply]:
    """Read the store's time by loading an unused key. Retries as long as a claim does."""
    verb = partial(store.load, ledger_key(name, "now"))
    return retries.retry_transient(verb, clock, retries.patience(clock))


def _seconds(window: str | float) -> float:
    try:
        length = seconds(window)
    except (TypeError, ValueError) as error:
        raise ValueError(f"window={window!r}: {error}") from error
    if not 1 <= length <= _LONGEST:
        raise ValueError(f"window={window!r}: give at least a second, and at most {_LONGEST:.0e}")
    return length


def _moment(value: object) -> datetime:
    """Return an aware moment. Raises KeyMissing or ValueError."""
    if value is None:
        raise KeyMissing("at= found nothing in the arguments, so there is no window; the function did not run")
    moment = value
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            moment = _EPOCH + timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"at= is {value!r}, which is not a time: {error}; the function did not run") from error
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise ValueError(
            f"at= is {value!r}: give a datetime or ISO 8601 text with a time zone, or seconds since the epoch; "
            "the function did not run"
        )
    return moment

"""Watchers that tell of each incident once, however many they are.

An incident is a key of the ledger. Whoever claims it tells that it began, and gives the key back with a note. When it is over,
whoever claims it then tells that, and completes the key. A watcher that vanishes in between leaves a claim that lapses, and
another one tells again: at least once, and normally once.

The notes are read before the incidents. So an incident with a note that is not found any more is over.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.clock import Clock, boottime
from onceward.core.record import RELEASED
from onceward.errors import Busy, Completed, OncewardError, Parked
from onceward.once import Once
from onceward.watch.incidents import (
    DEFAULTS,
    LEVELS,
    NAME,
    Incident,
    IncidentLimits,
    incidents_of,
    is_of_another_host,
    warnings_of,
)
from onceward.watch.notices import Event, Notice, Tell, notices_of

if TYPE_CHECKING:
    from onceward.claim.claim import Claim
    from onceward.claim.guard import Guard

LEASE: Final = 60.0  # seconds after which another watcher tells what a vanished one has not
_LOOK_AGAIN: Final = 600.0  # seconds between two looks of doctor
# Seconds that a note stays: an incident that lasts longer is told again. That it is over must be known for longer than a watcher
# keeps doctor's findings.
_KEPT: Final[dict[Event, float]] = {"began": 30 * 86400.0, "over": 3600.0}
_TOLD, _UNTOLD = "told ", "not told "


class Round(NamedTuple):
    """What one round came to.

    Attributes:
        notices: what was told.
        errors: why something could not be told; the next round tries again.
    """

    notices: list[Notice]
    errors: list[Exception]


class Watcher:
    """Looks at a ledger and tells what is wrong.

    Args:
        once: the ledger.
        tell: called with each notice; raises if it was not told.
        limits: from when on something is an incident.
        doctor: whether to look at the ledger's settings, too, every ten minutes.
        lease: seconds after which another watcher tells what a vanished one has not.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        once: Once,
        tell: Sequence[Tell],
        limits: IncidentLimits = DEFAULTS,
        *,
        doctor: bool = True,
        lease: float = LEASE,
        clock: Clock = boottime,
    ) -> None:
        self._once, self._tell, self._limits, self._doctor, self._clock = once, tell, limits, doctor, clock
        self._guards: dict[Event, Guard] = {
            event: once.guards.for_keys(
                NAME, {"lease": lease, "retention": max(kept, lease), "history": 0}, no_skip="", heartbeat=False
            )
            for event, kept in _KEPT.items()
        }
        self._warnings: tuple[float, list[Incident]] | None = None
        self._heard: set[tuple[int, str, str]] = set()  # who has heard what others have not

    def round(self, is_stopped: Callable[[], bool] = bool) -> Round:
        """Look once, and tell what is new and what is over. Raises StoreError if the ledger cannot be read.

        Args:
            is_stopped: asked before each notice; what is left then is for the next round, or another watcher.
        """
        noted = self._noted()
        found = {one.id: one for one in (*incidents_of(self._once.ledger, self._limits), *self._settings())}
        new = [one for key, one in found.items() if not noted.get(key, "").startswith(_TOLD)]
        gone = (Incident.of_note(_bare(note), key) for key, note in noted.items() if key not in found)
        over = [one for one in gone if self._knows(one)]
        done = Round([], [])
        ledger = self._once.store.url
        for notice in (*notices_of("began", new, ledger), *notices_of("over", over, ledger)):
            if is_stopped():
                break
            self._claimed(notice, done)
        return done

    def _knows(self, gone: Incident) -> bool:
        """Return whether this watcher would have found an incident that is not over."""
        return (self._doctor or gone.kind not in LEVELS) and not is_of_another_host(gone)

    def _noted(self) -> dict[str, str]:
        """Return the notes of the incidents that are not over, by their keys."""
        records = self._once.ledger.records(prefix=f"{NAME}:", status=(RELEASED, "LAPSED"))
        return {record.key: record.error or "" for record, _ in records}

    def _settings(self) -> list[Incident]:
        if not self._doctor:
            return []
        if self._warnings is None or self._clock() - self._warnings[0] >= _LOOK_AGAIN:
            self._warnings = (self._clock(), warnings_of(self._once.store))
        return self._warnings[1]

    def _claimed(self, notice: Notice, done: Round) -> None:
        """Tell of those incidents that no other watcher tells of, or has told."""
        claims: list[tuple[Incident, Claim]] = []
        over = notice.event == "over"
        try:
            for one in notice.incidents:
                claim = self._claim(one, notice.event)
                if claim is not None:
                    since = Incident.of_note(_bare(claim.record.error or ""), one.id).since
                    claims.append((one._replace(since=since or claim.fence), claim))
            for _, claim in claims:
                claim.extend()  # the lease must last while the notice is told
            if claims:
                mine = notice._replace(incidents=[one for one, _ in claims])
                self._told(mine)
                done.notices.append(mine)
        except Exception as error:
            done.errors.append(error)
            told = _TOLD if over else _UNTOLD
            over = False
        else:
            told = _TOLD
        for one, claim in claims:
            _leave(claim, None if over else f"{told}{one.note}", done)

    def _told(self, notice: Notice) -> None:
        """Tell all that have not heard it. One that fails holds up no other, and is told alone in the next round."""
        failure: Exception | None = None
        for number, tell in enumerate(self._tell):
            rest = [one for one in notice.incidents if (number, notice.event, one.id) not in self._heard]
            try:
                if rest:
                    tell(notice._replace(incidents=rest))
            except Exception as error:
                failure = failure or error
            else:
                self._heard.update((number, notice.event, one.id) for one in rest)
        if failure is not None:
            raise failure
        over = {one.id for one in notice.incidents}
        self._heard = {one for one in self._heard if one[2] not in over}

    def _claim(self, one: Incident, event: Event) -> "Claim | None":
        try:
            claim = self._guards[event].acquire(one.id)
        except (Busy, Completed, Parked):
            return None
        note = claim.record.error or ""
        if event == "began" and note.startswith(_TOLD):  # another watcher has told it since we read the notes
            claim.release(note)
            return None
        return claim


def _bare(note: str) -> str:
    return note.removeprefix(_TOLD).removeprefix(_UNTOLD)


def _leave(claim: "Claim", note: str | None, done: Round) -> None:
    """Give back a claim with its note, or complete it without one."""
    try:
        if note is None:
            claim.complete()
        else:
            claim.release(note)
    except OncewardError as error:  # another watcher tells it again
        done.errors.append(error)

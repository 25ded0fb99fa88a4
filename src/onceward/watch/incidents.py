"""What is wrong in a ledger now: parked, stuck and lapsed keys, overdue messages, and doctor's warnings."""

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from onceward.aws.doctor.diagnosis import diagnosis
from onceward.aws.doctor.look import Inspection
from onceward.core import worker
from onceward.core.comparisons import meets
from onceward.core.drivers import drive
from onceward.core.history import begin
from onceward.core.policy import Policy
from onceward.core.protocol import STATES, is_lapsed, is_live
from onceward.core.record import IN_PROGRESS, PARKED, Record
from onceward.core.views import relative
from onceward.keys.ledger_keys import ledger_key
from onceward.stores.capabilities import SURVEY
from onceward.stores.contract import Store
from onceward.stores.ledger import Ledger

NAME: Final = "onceward.watch"  # the namespace of incidents
LEVELS: Final = frozenset({"error", "warning"})  # the kinds of what doctor finds
_COMPARED: Final = "clock"  # the check that compares this host with the ledger's
_SEEN: Final = ", seen from "
_MESSAGES: Final = ("UNSENT", "REFUSED")
_LONGEST: Final = 300  # characters of a text about one incident
_NOTE: Final = 980  # characters of a note: a record's error has 1,000, and the note gets a mark


class IncidentLimits(NamedTuple):
    """From when on something is an incident, in seconds.

    Attributes:
        stuck: since the claim of a key that a worker still holds.
        lapsed: since the end of a lease. A redelivery usually takes the key over.
        overdue: since the completion of a key whose messages are not sent.
    """

    stuck: float = 3600.0
    lapsed: float = 300.0
    overdue: float = 300.0


DEFAULTS: Final = IncidentLimits()


class Incident(NamedTuple):
    """Something that is wrong.

    Attributes:
        kind: "parked", "stuck", "lapsed", "overdue", "refused", or doctor's "error" or "warning".
        subject: the key in the ledger, or what doctor has checked.
        says: what is known of it.
        id: its own key in the ledger.
        since: the fence of the claim that told of it first: a new one if it ends and comes back. 0 is not known yet.
    """

    kind: str
    subject: str
    says: str
    id: str
    since: int = 0

    @classmethod
    def of(cls, kind: str, subject: str, says: str, fence: int = 0) -> "Incident":
        """Return an incident. With the ``fence`` of a claim, a key that is parked again is another one."""
        flat = " ".join(says.split())
        said = flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 1]}…"
        return cls(kind, subject, said, ledger_key(NAME, (kind, subject, fence)))

    @classmethod
    def of_note(cls, note: str, key: str) -> "Incident":
        """Return the incident of a note under ``key``. A watcher that vanished has left another text."""
        try:
            kind, subject, says, since = json.loads(note)
            return cls(str(kind), str(subject), str(says), key, int(since))
        except (ValueError, TypeError):
            return cls("incident", key, "the watcher that told of it has vanished", key)

    @property
    def note(self) -> str:
        """It as text to keep in the ledger. What is known of it is left out, and then its key is cut, if that is too long."""
        subject, says = self.subject, self.says
        while len(text := json.dumps((self.kind, subject, says, self.since), ensure_ascii=False)) > _NOTE:
            says, subject = "", subject if says else f"{subject[: len(subject) * 3 // 4]}…"
        return text


def incidents_of(ledger: Ledger, limits: IncidentLimits) -> Iterator[Incident]:
    """Yield what is wrong with the records of a ledger. Raises StoreError.

    It finds the records by indexes if the ledger has them.
    """
    for states in _looks(ledger.store):
        for page in ledger.pages(status=states):
            for record in page.records:
                told = None if record.key.startswith(f"{NAME}:") else _of_record(record, page.now, limits)
                if told is not None:
                    yield Incident.of(told[0], record.key, told[1], record.fence)


def _looks(store: Store) -> list[tuple[str, ...]]:
    """Return the states to ask for, in as few looks as read nothing twice."""
    survey = SURVEY.of(store)
    indexed = frozenset() if survey is None else drive(survey(), store).indexed
    if not indexed:
        return [(IN_PROGRESS, PARKED, *_MESSAGES)]
    found = tuple(state for state in (IN_PROGRESS, PARKED) if state in indexed)
    read = tuple(state for state in (IN_PROGRESS, PARKED) if state not in indexed)
    return [states for states in (found, read, _MESSAGES) if states]


def warnings_of(store: Store) -> list[Incident]:
    """Return what doctor finds wrong with the settings of a ledger."""
    look = Inspection(Policy())
    look.ledger(store)
    found = diagnosis(look.facts)
    here = _here()
    return [
        Incident.of(one.level, f"{one.check}{here}" if one.check == _COMPARED else one.check, one.says)
        for one in found
        if one.level in LEVELS
    ]


def is_of_another_host(incident: Incident) -> bool:
    """Return whether only the watchers of another host can know if it is over."""
    return incident.kind in LEVELS and _SEEN in incident.subject and not incident.subject.endswith(_here())


def _here() -> str:
    return f"{_SEEN}{worker.process.partition('/')[0]}"


def _of_record(record: Record, now: float, limits: IncidentLimits) -> tuple[str, str] | None:
    attempts = f"attempt {record.attempts} of {record.worker or 'an unknown worker'}"
    if record.due_at is not None:
        return _of_messages(record, now, limits)
    if record.status == PARKED:
        return "parked", f"{record.error or 'no reason was given'} ({attempts})"
    if is_lapsed(record, now):
        if now - record.lease_until < limits.lapsed:
            return None
        return "lapsed", f"its worker has vanished: the lease of {attempts} ended {relative(record.lease_until, now)}"
    began = begin(record)
    if not is_live(record, now) or began is None or now - began < limits.stuck:
        return None
    return "stuck", f"{attempts} began {relative(began, now)} and still runs"


def _of_messages(record: Record, now: float, limits: IncidentLimits) -> tuple[str, str] | None:
    if meets(record, STATES["REFUSED"], now):
        return "refused", "its target has refused a message for good"
    if now - record.lease_until < limits.overdue:  # not due_at: each failed try moves that into the future
        return None
    return "overdue", f"it was completed {relative(record.lease_until, now)}, and its messages are not sent"

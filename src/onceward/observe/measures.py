"""What is measured of events: one table for Prometheus, OpenTelemetry and CloudWatch.

A key is never a label. The labels are the namespace of the keys, the kind of an event, the action of a request and its error.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from threading import Lock
from typing import Final, NamedTuple, Protocol

from onceward.observe.events import Event, Happening, StoreRequest

MOST_NAMES: Final = 200  # namespaces that are told apart; the rest are OTHER, so that no mistake makes a label of a key
OTHER: Final = "(other)"
_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class Measure(NamedTuple):
    """One thing that is measured.

    Attributes:
        name: in the form of OpenTelemetry; Prometheus writes ``onceward_handler_duration_seconds``.
        unit: "s", or what is counted, in braces.
        labels: the names of its labels.
        bounds: the upper bounds of a histogram's buckets; () for a counter.
        often: whether a successful call measures it. OpenTelemetry's own histograms are too slow for all of those.
    """

    name: str
    unit: str
    help: str
    labels: tuple[str, ...] = ("handler",)
    bounds: tuple[float, ...] = ()
    often: bool = False


CALLS: Final = Measure("onceward.calls", "{call}", "Calls by outcome", ("handler", "outcome"))
HANDLER: Final = Measure("onceward.handler.duration", "s", "How long handlers ran", bounds=_SLOW)
CALL: Final = Measure(
    "onceward.call.duration", "s", "From the request for the key to the end of the claim", bounds=_SLOW
)
WAIT: Final = Measure(
    "onceward.wait.duration",
    "s",
    "How long duplicates and takeovers waited",
    ("handler", "answer"),
    _FAST,
)
LEFT: Final = Measure(
    "onceward.lease.left", "s", "Time left of the lease at the end of a claim", bounds=_SLOW, often=True
)
TAKEOVERS: Final = Measure("onceward.takeovers", "{claim}", "Claims taken over from a worker whose lease had ended")
LOST: Final = Measure("onceward.leases.lost", "{claim}", "Claims that workers lost to another worker")
RENEWALS: Final = Measure("onceward.lease.renewals", "{renewal}", "Renewals of leases")
LATE: Final = Measure("onceward.settling.delay", "s", "Delay of outcomes that were not recorded at once", bounds=_FAST)
PARKED: Final = Measure("onceward.parkings", "{key}", "Keys that were parked")
STEP: Final = Measure("onceward.step.duration", "s", "How long steps of handlers ran", bounds=_SLOW)
SENT: Final = Measure("onceward.outbox.sent", "{message}", "Messages of the outbox that were sent")
DELAY: Final = Measure(
    "onceward.outbox.delay", "s", "From the completion until all messages of a record were sent", bounds=_SLOW
)
UNSENT: Final = Measure("onceward.outbox.failures", "{message}", "Failed tries to send a message")
REFUSED: Final = Measure("onceward.outbox.refused", "{message}", "Messages that a target refused for good")
REQUESTS: Final = Measure(
    "onceward.ledger.request.duration", "s", "Requests to the ledger", ("action", "error"), _FAST, often=True
)
CAPACITY: Final = Measure("onceward.ledger.capacity", "{unit}", "Consumed capacity units of DynamoDB", ("action",))
THROTTLES: Final = Measure("onceward.ledger.throttles", "{request}", "Requests that the ledger throttled", ("action",))
MEASURES: Final = (
    *(CALLS, HANDLER, CALL, WAIT, LEFT, TAKEOVERS, LOST, RENEWALS, LATE, PARKED),
    *(STEP, SENT, DELAY, UNSENT, REFUSED, REQUESTS, CAPACITY, THROTTLES),
)
KEYS: Final = Measure("onceward.keys", "{key}", "Keys that are not completed, by status", ("status",))
OUTBOX_AGE: Final = Measure("onceward.outbox.age", "s", "Age of the oldest due message of the outbox", ())
GAUGE_AGE: Final = Measure("onceward.gauges.age", "s", "Time since the gauges of the ledger were read", ())
GAUGES: Final = (KEYS, OUTBOX_AGE, GAUGE_AGE)
Readings = dict[Measure, dict[tuple[str, ...], float]]  # the values of gauges, by labels


class ReadsGauges(Protocol):
    """What reads the gauges of a ledger: ``LedgerGauges(once)`` of ``stores/gauges.py``."""

    def read(self, patience: float | None = ...) -> Readings:
        """Return each gauge's values by labels, after at most so many seconds."""


# The codes with which DynamoDB and S3 throttle (their developer guides, "Error handling").
THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
        "SlowDown",
        "Throttling",
        "ThrottlingError",
        "KmsThrottled",
    }
)

Record = Callable[[float], object]  # takes one measured value
Reads = tuple[tuple[Measure, str | None], ...]  # measures, and the fields of the event that have their values

_END: Final = ((HANDLER, "ran"), (CALL, "took"), (LEFT, "left"))
_WAITED: Final = ((CALLS, None), (WAIT, "waited"))
_KINDS: Final[dict[str, Reads]] = {
    **dict.fromkeys(("completed", "failed", "released"), ((CALLS, None), *_END)),
    **dict.fromkeys(("replayed", "busy", "mismatch"), _WAITED),
    **dict.fromkeys(("interrupted", "not_recorded", "malformed", "deferred"), ((CALLS, None),)),
    "parked": (*_WAITED, *_END),
    "lost": ((CALLS, None), (LOST, None)),
    "taken_over": ((TAKEOVERS, None), (WAIT, "waited")),
    "renewed": ((RENEWALS, None),),
    "settled_late": ((LATE, "late"),),
    "step": ((STEP, "ran"),),  # None if it was answered from the record
    "sent": ((SENT, "messages"), (DELAY, "waited")),
    "send_failed": ((UNSENT, None),),
    "refused": ((REFUSED, None),),
}


class Meter(ABC):
    """An observer that measures events. A subclass says where the values go.

    Attributes:
        plans: for each kind and name, the fields to read and what takes their values.
    """

    def __init__(self) -> None:
        self.plans: dict[object, list[tuple[int | None, Record]]] = {}
        self._names: set[str] = set()

    @abstractmethod
    def record_of(self, measure: Measure, labels: tuple[str, ...]) -> Record:
        """Return what takes the values of a measure with these labels."""

    def __call__(self, event: Happening) -> None:
        """Measure an event."""
        if isinstance(event, StoreRequest):
            of: object = (event.action, event.error)
        else:
            of = (event.kind, event.name, event.again)
        plan = self.plans.get(of)
        if plan is None:
            plan = self._plan(of, event)
        for place, record in plan:
            if place is None:
                record(1)
            elif (value := event[place]) is not None:
                record(value)  # type: ignore[arg-type]  # the table names fields that are numbers

    def _plan(self, of: object, event: Happening) -> list[tuple[int | None, Record]]:
        labels, reads = self._labelled(event)
        fields = type(event)._fields
        plan = [
            (
                None if field is None else fields.index(field),
                self.record_of(m, tuple(labels[name] for name in m.labels)),
            )
            for m, field in reads
        ]
        if labels.get("handler") != OTHER:
            self.plans[of] = plan
        return plan

    def _labelled(self, event: Happening) -> tuple[dict[str, str], Reads]:
        if isinstance(event, StoreRequest):
            reads: Reads = ((REQUESTS, "seconds"), (CAPACITY, "units"))
            if event.error in THROTTLED:
                reads = (*reads, (THROTTLES, None))
            return {"action": event.action, "error": event.error}, reads
        reads = _KINDS.get(event.kind, ())
        if event.kind == "parked" and not event.again:
            reads = (*reads, (PARKED, None))
        return {"handler": self._name(event), "outcome": event.kind, "answer": event.kind}, reads

    def _name(self, event: Event) -> str:
        if event.name not in self._names:
            if len(self._names) >= MOST_NAMES:
                return OTHER
            self._names.add(event.name)
        return event.name


class Spread(NamedTuple):
    """A histogram as it is read: how many values are in each bucket, the last without a bound, and their sum."""

    counts: list[int]
    sum: float


class Cell:
    """How many values fell into each bucket, their sum, and the least since it was last asked for. A counter has one bucket."""

    __slots__ = ("_bounds", "_counts", "_least", "_lock", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._least: float | None = None
        self._lock = Lock()

    def add(self, value: float) -> None:
        """Count a value."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value
            if self._least is None or value < self._least:
                self._least = value

    def read(self) -> Spread:
        """Return what was counted."""
        with self._lock:
            return Spread(list(self._counts), self._sum)

    def take_least(self) -> float | None:
        """Return the least value since the last call, or None."""
        with self._lock:
            least, self._least = self._least, None
        return least


class CellMeter(Meter):
    """A meter whose values stay in memory until they are read.

    Attributes:
        cells: by measure and labels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cells: dict[tuple[Measure, tuple[str, ...]], Cell] = {}

    def __reduce__(self) -> tuple[object, ...]:
        name = type(self).__name__
        raise TypeError(
            f"{name} counts in its own process, so it cannot be pickled. Pickle a Once without it, as in Once(URL)"
        )

    def record_of(self, measure: Measure, labels: tuple[str, ...]) -> Record:
        """Return what takes the values of a measure with these labels."""
        cell = self.cells.get((measure, labels))
        if cell is None:
            cell = self.cells.setdefault(
                (measure, labels), Cell(measure.bounds)
            )  # atomic: two threads get the same one
        return cell.add

    def of(self, measure: Measure) -> list[tuple[tuple[str, ...], Cell]]:
        """Return the cells of a measure, with their labels."""
        return [(labels, cell) for (one, labels), cell in list(self.cells.items()) if one is measure]

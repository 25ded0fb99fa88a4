"""The events of one claim: noted within the steps, told while no store is asked and no lock is held."""

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from onceward.core.protocol import Outcome, Unbegun
from onceward.core.record import COMPLETED, PARKED, RELEASED, Record
from onceward.observe.events import ROUTE, Event, Kind, about
from onceward.observe.observers import Observers

if TYPE_CHECKING:
    from onceward.observe.spans import CallSpan

_ENDS: Final[dict[str, Kind]] = {COMPLETED: "completed", RELEASED: "released", PARKED: "parked"}


class Story:
    """The events of one claim.

    Attributes:
        since: when its key was asked for, on the owner's clock; None when nobody listened then.
        began: when the handler began, on the owner's clock; None when nobody listened then.
        raised: the handler's exception, until it is noted.
        ran: how long the handler ran, in seconds, once it has ended.
        late_since: when the first try to record the end failed.
        span: follows the claim; None if nobody makes spans.
    """

    __slots__ = ("_events", "_observers", "_over", "_route", "began", "late_since", "raised", "ran", "since", "span")

    def __init__(
        self,
        observers: Observers,
        began: float | None,
        since: float | None = None,
        span: "CallSpan | None" = None,
    ) -> None:
        self._observers = observers
        self._events: deque[Event] = deque()
        self._route = ROUTE.get()  # read now: heartbeats, and recording after an answer, have another context
        self._over = False  # whether its end is noted
        self.since = since
        self.began = began
        self.raised: Exception | None = None
        self.ran: float | None = None
        self.late_since: float | None = None
        self.span = span

    def note(self, kind: Kind, record: Record, **more: Any) -> None:
        """Note an event of the key of ``record``."""
        self._events.append(about(kind, record, route=self._route, **more))

    def handled(self, now: float) -> None:
        """Note that the handler has ended."""
        if self.began is not None:
            self.ran = now - self.began

    def ended(self, record: Record, outcome: Outcome, *, now: float, remaining: float) -> None:
        """Note how the claim was ended, ``now`` on the owner's clock, with ``remaining`` seconds of its lease."""
        if self._over:  # an interrupt came after the end was noted
            return
        self._over = True
        kind, error = _ENDS[outcome.status], self.raised
        self.raised = None  # as in EndingClaim.failing
        if kind == "released" and error is not None and not isinstance(outcome, Unbegun):
            kind = "failed"
        if self.ran is None:
            self.handled(now)
        took = None if self.since is None else now - self.since
        self.note(
            kind, record, error=outcome.error if error is None else error, ran=self.ran, left=remaining, took=took
        )
        if self.late_since is not None:
            self.note("settled_late", record, late=now - self.late_since)

    def forget(self) -> None:
        """Forget the noted events: they were rolled back."""
        self._over = False
        self._events.clear()

    def hand_over(self, events: deque[Event]) -> None:
        """Move the noted events to ``events``, to tell them with those of other claims. The claim is over."""
        while self._events:
            event = self._events.popleft()
            if self.span is not None:
                self.span.note(event)
            events.append(event)
        if self.span is not None:
            self.span.over()

    def tell(self, *, over: bool) -> None:
        """Tell the noted events. A heartbeat can do so at the same time. Then the claim may be ``over``."""
        span = self.span
        while self._events:
            try:
                event = self._events.popleft()
            except IndexError:
                break
            if span is not None:
                span.note(event)
                over = over or event.kind == "not_recorded"
            self._observers.tell(event)
        if span is not None and over:
            span.over()

"""Reports a batch's outcomes as they happen: to its caller, to the log, to observers, and to the adapter that made it."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from onceward.batch.handler import BatchHandler
from onceward.batch.outcomes import BatchOutcome, Item, Status
from onceward.claim.replays import refusal
from onceward.core.protocol import Verdict
from onceward.core.record import COMPLETED, PARKED, RELEASED
from onceward.core.steps import Refused, Replay
from onceward.errors import Mismatch, OncewardError
from onceward.keys.json_reading import NotJson
from onceward.observe.events import Event, Kind, about
from onceward.observe.logs import logger
from onceward.results.outcomes import describe

_REFUSED: Final[dict[Verdict, Status]] = {
    Verdict.BUSY: "busy",
    Verdict.PARKED: "parked",
    Verdict.MISMATCH: "mismatch",
}
_ENDED: Final[dict[str, Status]] = {COMPLETED: "done", RELEASED: "failed", PARKED: "parked"}


class Report:
    """The outcomes of one call of a batch.

    Attributes:
        listening: whether observers listen.
        events: what happened; see :meth:`tell`.
    """

    def __init__(self, batch: BatchHandler) -> None:
        self._batch = batch
        self._guard = batch.guard
        self.listening = batch.guard.observers.are_listening()
        self.events: deque[Event] = deque()

    def report(self, item: Item, status: Status, value: object = None, error: Exception | None = None) -> None:
        """Report the outcome of an item."""
        key = item.key or None
        item.outcome = outcome = BatchOutcome(status, item.record, key, value, error)
        if self.listening and status in {"malformed", "deferred"}:
            kind: Kind = "malformed" if status == "malformed" else "deferred"
            self.events.append(Event(kind, key, self._batch.name, error=error))
        if not outcome.ok:
            _log(outcome)
        if self._batch.heard is not None:
            try:
                self._batch.heard(outcome)
            except Exception:
                logger().exception("%s: the callback for outcomes raised. The outcomes stay as they are", key)

    def answered(self, item: Item, answer: Replay | Refused | Exception) -> None:
        """Report an item that was not won."""
        if isinstance(answer, Exception):
            self.report(item, "failed", error=answer)
        elif isinstance(answer, Refused):
            status = _REFUSED.get(answer.verdict, "failed")
            self.report(item, status, error=refusal(answer, self._guard.policy))
        else:
            item.replay = answer
            value, raised = None, None
            try:
                value = self._guard.replays.recorded(answer.record)
            except Exception as error:  # a recorded final exception can be of any type
                raised = error
            self.report(item, "replayed", value, raised)

    def ended(self, item: Item) -> None:
        """Report an item whose handler has ended, and whose end is recorded or has trouble."""
        claim = item.held
        if claim.story is not None:
            claim.story.hand_over(self.events)
        error, status = item.error, _ENDED.get(claim.settled or "", "failed")
        if item.trouble is not None:
            status = "failed"
            if error is None:
                error = item.trouble
            else:
                error.add_note(f"onceward: and then {item.trouble}")
        elif status == "done":
            try:
                claim.warn()
            except Warning as warning:  # where warnings are errors: the record is completed anyway
                logger().warning("%s", warning)
        self.report(item, status, item.value, error)

    def finished(self, items: Sequence[Item]) -> list[BatchOutcome]:
        """Return all outcomes. A duplicate gets the outcome of its first; an item that has not begun is deferred."""
        for item in items:
            if item.outcome is None:
                self._share(item, item.first)
        self.tell()
        self._guard.observers.flush()
        return [item.outcome for item in items if item.outcome is not None]

    def _share(self, item: Item, first: Item | None) -> None:
        if first is None or first.outcome is None:
            self.report(item, "deferred", error=item.trouble)
            return
        outcome, other = first.outcome, item.differs(first)
        if not outcome.ok:
            if other:  # the outcome says nothing about a different input
                self.report(item, "deferred")
            else:
                self.report(item, outcome.status, outcome.value, outcome.error)
            return
        before = first.replay or Replay(first.held.record, None)
        if self.listening:
            self.events.append(about("mismatch" if other else "replayed", before.record))
        if other:
            self.report(item, "mismatch", error=Mismatch(item.key))
        else:
            self.answered(item, before)

    def tell(self) -> None:
        """Tell observers what happened. Call it without a lock and outside store requests."""
        while self.events:
            try:
                event = self.events.popleft()
            except IndexError:  # another thread was faster
                return
            self._guard.observers.tell(event)


def _log(outcome: BatchOutcome) -> None:
    log, error = logger(), outcome.error
    where = outcome.key or _without_key(outcome.record)
    if outcome.status == "malformed":
        log_malformed(outcome.record, error)
    elif outcome.status == "failed":
        info = error if error is None else (type(error), error, error.__traceback__)  # an error may be falsy
        log.error("%s: %s", where, outcome.status, exc_info=info)
    elif outcome.status in {"parked", "mismatch"}:
        log.warning("%s: %s", where, outcome.status if error is None else describe(error))
    else:
        log.info("%s: %s", where, outcome.status)


def log_malformed(record: object, error: BaseException | None) -> None:
    """Log why a record is malformed, without its payload."""
    where = _without_key(record)
    logger().error("%s: malformed: %s", where, _without_payload(error).replace(f"{where}: ", "", 1))


def _without_key(record: object) -> str:
    """Describe a record without a key: a delivery names itself."""
    name = getattr(record, "named", None)
    return name if isinstance(name, str) else "a record without a key"


def _without_payload(error: BaseException | None) -> str:
    """Return why a record is malformed. Only our own words are shown: other texts may quote a payload that must not be logged."""
    if error is None:
        return ""
    cause = error.__cause__
    if isinstance(error, OncewardError) and (cause is None or isinstance(cause, NotJson)):
        return describe(error)
    kinds = type(error).__name__ if cause is None else f"{type(error).__name__} from {type(cause).__name__}"
    return (
        f"{kinds}, whose text may quote the payload and is not logged. "
        "Look at the message where it came from; an observer of Once(observe=[...]) is given the error itself"
    )

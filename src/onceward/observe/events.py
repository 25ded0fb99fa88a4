"""The events that observers get. All durations are seconds on the owner's clock."""

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Final, Literal, NamedTuple

from onceward.core.protocol import Verdict, has_taken_over
from onceward.core.record import Record
from onceward.core.steps import Refused, Replay, Won

Kind = Literal[
    "claimed",  # the key was free, or given back before
    "taken_over",  # the same, from a worker whose lease had ended
    "replayed",  # a duplicate got the recorded outcome
    "busy",  # another worker holds the key
    "mismatch",  # another input under the same key
    "parked",  # not tried again until a person clears or unparks the key
    "renewed",  # a heartbeat, or claim.extend()
    "lost",  # the key has gone on without this worker
    "completed",  # the outcome is recorded for good
    "failed",  # the handler raised, and the key was given back
    "released",  # the key was given back without a failure
    "interrupted",  # the handler was interrupted; the key stays claimed to the end of its lease
    "settled_late",  # the end of the claim was recorded, but not by the first try
    "not_recorded",  # the end of the claim could not be recorded
    "malformed",  # a record of a batch has no key, or could not be read
    "deferred",  # a record of a batch was not begun
]


class Event(NamedTuple):
    """What happened to one key.

    A key is never a metric's label: there are as many keys as messages. ``kind``, ``name`` and ``worker`` are few.

    Attributes:
        kind: what happened, see :data:`Kind`.
        key: the key as it stands in the ledger; None for "malformed".
        name: the namespace of the key.
        attempt: which attempt on the key this is or was, from 1; None where the ledger was not asked.
        fence: the fencing token; None likewise.
        worker: who claimed the key: for "busy" and "replayed" that is another worker.
        error: the exception that the handler or the guard raised, or the reason that was given to ``release`` or ``park``.
        route: of an HTTP request, as it is declared, such as ``POST /orders/{id}``; None elsewhere.
        again: for "parked": whether the key was parked before, so that this is one more delivery of it.
        waited: from asking for the key to the answer; most of it is waiting for a busy key, where ``on_busy`` says so.
        ran: how long the handler ran.
        left: how much of the lease was left: of this claim when it ended, or of the other worker's for "busy".
        late: how long after the first try the end of the claim was recorded.
    """

    kind: Kind
    key: str | None
    name: str
    attempt: int | None = None
    fence: int | None = None
    worker: str | None = None
    error: Exception | str | None = None
    route: str | None = None
    again: bool = False
    waited: float | None = None
    ran: float | None = None
    left: float | None = None
    late: float | None = None


class StoreRequest(NamedTuple):
    """One request to a store, and its answer.

    A throttled request that is sent again is one event for each time, with the code of the refusal in ``error``.

    Attributes:
        store: the ledger's URL.
        action: what was asked for, such as ``insert``; in DynamoDB as IAM names it, such as ``dynamodb:PutItem``.
        seconds: from sending to arrival.
        error: the short code or the class of the error; "" for none. A refused condition is DynamoDB's
            ``ConditionalCheckFailed``: that is how a duplicate is found.
        units: consumed capacity units of DynamoDB; None where the answer does not tell (a refused write's does not).
    """

    store: str
    action: str
    seconds: float
    error: str = ""
    units: float | None = None
    kind: Literal["store_request"] = "store_request"


_ROUTE: ContextVar[str | None] = ContextVar("onceward_route", default=None)


class Within:
    """A context in which events name the route of an HTTP request."""

    __slots__ = ("_route", "_token")
    _token: Token[str | None]

    def __init__(self, route: str) -> None:
        self._route = route

    def __enter__(self) -> None:
        self._token = _ROUTE.set(self._route)

    def __exit__(self, *_: object) -> None:
        _ROUTE.reset(self._token)


def route() -> str | None:
    """Return the route that events name here."""
    return _ROUTE.get()


Happening = Event | StoreRequest
Observer = Callable[[Happening], object]


def about(kind: Kind, record: Record) -> Event:
    """Return the event of this kind about the key of ``record``."""
    key = record.key
    return Event(kind, key, key.partition(":")[0], record.attempts, record.fence, record.worker, route=_ROUTE.get())


_REFUSED: Final[dict[Verdict, Kind]] = {
    Verdict.BUSY: "busy",
    Verdict.MISMATCH: "mismatch",
    Verdict.PARKED: "parked",
}


def of_memory(key: str) -> Event:
    """Return the event of a duplicate that was answered from memory, without asking the ledger."""
    return Event("replayed", key, key.partition(":")[0], route=_ROUTE.get())


def of_claiming(answer: Won | Replay | Refused, waited: float | None, error: Exception | None = None) -> Event | None:
    """Return the event of a claim: won, answered or refused; None where a newer version must say what the record means.

    Args:
        answer: what came of it.
        waited: how long that took.
        error: what a refused caller gets.
    """
    if isinstance(answer, Won):
        kind: Kind = "taken_over" if has_taken_over(answer.record, answer.before) else "claimed"
        return about(kind, answer.record)._replace(waited=waited)
    if isinstance(answer, Replay):
        return about("replayed", answer.record)._replace(waited=waited)
    refused = _REFUSED.get(answer.verdict)
    if refused is None:
        return None
    met = about(refused, answer.record)._replace(waited=waited, error=error)
    if refused == "busy":
        return met._replace(left=answer.wait)
    return met._replace(again=refused == "parked" and not answer.parked)

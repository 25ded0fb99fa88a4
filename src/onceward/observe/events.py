"""The events that observers get. All durations are seconds on the owner's clock."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple

from onceward.core.protocol import Verdict, has_taken_over
from onceward.core.record import Record
from onceward.core.steps import Refused, Replay, Won

Kind = Literal[
    "claimed",  # the key was free, or given back
    "taken_over",  # claimed from a worker whose lease had ended
    "replayed",  # a duplicate got the recorded outcome
    "busy",  # another worker holds the key
    "mismatch",  # another input under the same key
    "parked",  # the key is not retried until a person acts
    "step",  # a step ran and was recorded, or its recorded result was used
    "renewed",  # a heartbeat or claim.extend() renewed the lease
    "lost",  # the worker lost its claim, so another worker may have the key
    "completed",  # the outcome is recorded for good
    "failed",  # the handler raised, and the key was given back
    "released",  # the key was given back without a failure
    "interrupted",  # the handler was interrupted; the key stays claimed until its lease ends
    "settled_late",  # the outcome was recorded, but not on the first try
    "not_recorded",  # the outcome could not be recorded
    "malformed",  # a record of a batch has no key or could not be read
    "deferred",  # a record of a batch was not started
    "sent",  # messages of a completed key were sent, and removed from its record
    "send_failed",  # a message was not sent; onceward tries again
    "refused",  # a target will never take a message; it stays in the record
]


class Event(NamedTuple):
    """What happened to one key.

    Do not use a key as a metric label: there are as many keys as messages. ``kind``, ``name`` and ``worker`` are few.

    Attributes:
        kind: what happened, see :data:`Kind`.
        key: the key in the ledger; None for "malformed".
        name: the namespace of the key.
        attempt: the number of the attempt on the key, from 1; None when the ledger was not asked.
        fence: the fencing token; None likewise.
        worker: who claimed the key; for "busy" and "replayed", another worker.
        error: the exception of the handler or the guard, or the reason given to ``release`` or ``park``.
        route: the declared route of an HTTP request, such as ``POST /orders/{id}``; None elsewhere.
        again: for "parked": whether the key was parked before, so this is a further delivery. For "step": whether an earlier
            attempt has made it.
        waited: seconds from the request for the key to the answer, with the wait for a busy key. For "sent", from the
            completion until all was sent.
        ran: seconds that the handler ran, or for "step" its function.
        left: seconds left of the lease when this claim ended; for "busy", of the other worker's lease.
        late: seconds from the first try to record the end of the claim until it was recorded.
        took: seconds from the request for the key to the end of the claim.
        trace: the W3C traceparent of the run that made the record, for "busy" and "replayed" another one; None if it has none.
        messages: for "sent": how many messages this process has sent.
        target: for "send_failed" and "refused": the address of the target.
        step: for "step": its name. There can be many, so it is no metric label either.
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
    took: float | None = None
    trace: str | None = None
    messages: int | None = None
    target: str | None = None
    step: str | None = None


class StoreRequest(NamedTuple):
    """One request to a store, and its answer.

    Each retry of a throttled request is its own event, with the code of the refusal in ``error``.

    Attributes:
        store: the ledger's URL.
        action: the request, such as ``insert``; for DynamoDB its IAM name, such as ``dynamodb:PutItem``.
        seconds: from sending the request to the answer.
        error: the short code or the class of the error; "" for none. DynamoDB's ``ConditionalCheckFailed`` is a refused
            condition, which is how a duplicate is found.
        units: DynamoDB's consumed capacity units; None when the answer has none, as for a refused write.
    """

    store: str
    action: str
    seconds: float
    error: str = ""
    units: float | None = None
    kind: Literal["store_request"] = "store_request"


ROUTE: ContextVar[str | None] = ContextVar("onceward_route", default=None)  # of the HTTP request that events name

Happening = Event | StoreRequest
Observer = Callable[[Happening], object]


def about(kind: Kind, record: Record, **more: Any) -> Event:
    """Return the event of this kind about the key of ``record``, with ``more`` fields. Its route is by default the current one."""
    key = record.key
    if "route" not in more:
        more["route"] = ROUTE.get()
    name = key.partition(":")[0]
    return Event(kind, key, name, record.attempts, record.fence, record.worker, trace=record.trace, **more)


_REFUSED: Final[dict[Verdict, Kind]] = {Verdict.BUSY: "busy", Verdict.MISMATCH: "mismatch", Verdict.PARKED: "parked"}


def of_memory(key: str, trace: str | None = None, mismatch: Exception | None = None) -> Event:
    """Return the event of a duplicate that was answered from memory, not from the ledger, or refused with ``mismatch``."""
    kind: Kind = "replayed" if mismatch is None else "mismatch"
    return Event(kind, key, key.partition(":")[0], route=ROUTE.get(), trace=trace, error=mismatch)


def of_claiming(answer: Won | Replay | Refused, waited: float | None, error: Exception | None = None) -> Event | None:
    """Return the event of a claim: won, answered or refused; None when only a newer version knows what the record means.

    ``waited`` is how long the claim took, and ``error`` what a refused caller gets.
    """
    if isinstance(answer, Won):
        kind: Kind = "taken_over" if has_taken_over(answer.record, answer.before) else "claimed"
        return about(kind, answer.record, waited=waited)
    if isinstance(answer, Replay):
        return about("replayed", answer.record, waited=waited)
    refusal = _REFUSED.get(answer.verdict)
    if refusal is None:
        return None
    if refusal == "busy":
        return about(refusal, answer.record, waited=waited, error=error, left=answer.wait)
    again = refusal == "parked" and not answer.parked
    return about(refusal, answer.record, waited=waited, error=error, again=again)

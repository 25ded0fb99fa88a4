"""What to do with a dead letter because of its key's record. No I/O."""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from onceward.core import protocol
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, message_in
from onceward.core.record import PARKED, Record
from onceward.errors import OncewardError
from onceward.results.doubt import doubt_about
from onceward.stores.ledger import Ledger

_TRIES: Final = 5  # copies; a worker may receive and keep each before the key is unparked


def check_keeps(record: Record) -> str:
    """Return the message that a record keeps, as text; raises OncewardError if there is none."""
    text = protocol.message_in(record)
    if text is None:
        why = "is not parked" if record.status != PARKED else "keeps no message: leave out --to"
        raise OncewardError(f"{record.key}: it is {record.status} and {why}")
    return text


def unparked_after(ledger: Ledger, key: str, send: Callable[[Record], None], queue: str) -> Record:
    """Let ``send`` send the message to ``queue`` that a parked record keeps, and unpark its key; return the record as it is now.

    Raises:
        NotFound: there is no such key.
        StoreError: the ledger failed; a copy may have been sent.
        OncewardError: the key is not parked, or keeps no message.
    """
    for _ in range(_TRIES):
        record, _ = ledger.show(key, whole=True)
        check_keeps(record)
        send(record)
        write = protocol.unparked(record)
        assert write is not None  # it keeps a message
        reply = drive(ledger.store.swap(write, record), ledger.store)
        if reply.won and reply.record is not None:
            return reply.record
    raise OncewardError(
        f"{key}: a worker received each copy before the key was unparked, and kept it again: stop the workers of {queue} for a "
        "moment, and try again"
    )


OnCompleted = Literal["keep", "rerun", "drop"]
InDoubt = Literal["keep", "rerun"]
Step = Literal["move", "unpark", "reset", "rerun", "drop", "finish", "keep", "wait"]


class Plan(NamedTuple):
    """What to do with a message because of its record.

    Attributes:
        step: "move" it as it is; "unpark" its key, "reset" its attempts, or "rerun" (clear the key), and move it; "drop" the
            message, because its effect has happened; "finish" what an earlier run began, because the effect has happened
            since; "keep" it, because its key is completed; or "wait" for a worker that has the key, or for a person.
        reason: why, for people.
    """

    step: Step
    reason: str

    @property
    def moves(self) -> bool:
        """Whether to send a copy."""
        return self.step in {"move", "unpark", "reset", "rerun"}


def check_redrive(completed: str, known: tuple[str, ...], in_doubt: str, limit: int | None) -> None:
    """Raise ValueError if an option of a redrive is not valid. ``known`` is what ``completed`` can be."""
    for name, value, values in (("completed", completed, known), ("in_doubt", in_doubt, ("keep", "rerun"))):
        if value not in values:
            raise ValueError(f"{name}={value!r}: give {' or '.join(map(repr, values))}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit!r}: give a whole number, at least 1")


def planned(
    record: Record | None,
    now: float,
    completed: OnCompleted,
    in_doubt: InDoubt,
    *,
    begun: bool,
    intended: bool,
    fingerprint: str | None = None,
) -> Plan:
    """Return what to do with a message because of the ``record`` of its key.

    ``begun`` says that an earlier run had begun to move the message, and ``intended`` that a run noted that it clears this
    completed record, to run the key again. The fingerprint is the message's; None if it is unknown.
    """
    verdict = decide(record, now, "", fingerprint, Policy())
    if record is None or verdict is Verdict.START:
        return Plan("move", "no record of its key")
    if verdict is Verdict.BUSY:
        left = record.lease_until - now
        return Plan("wait", f"a worker holds its key for {left:.0f} s more, or longer: try again later")
    if verdict is Verdict.MISMATCH:
        why = "its key was used with another input, so its consumer refuses it: fix the message, or its sender"
        return Plan("keep", why)
    if verdict is Verdict.REPLAY:
        return _of_completed(record, completed, finished=begun and not intended, unknown=fingerprint is None)
    if message_in(record) is not None:
        why = "its key is parked, and keeps a message, which goes first: `onceward unpark KEY --to QUEUE` sends that again"
        return Plan("wait", why)
    if in_doubt == "keep" and (doubt := doubt_about(record)) is not None:
        what = "its effect" if doubt.step is None else f"its step {doubt.step}"
        why = (
            f"parked, and {what} may be made: ask the downstream. If it is not made, --in-doubt rerun moves the message; if it is, "
            "`onceward settle KEY --result JSON`"
        )
        return Plan("wait", why)
    step: Step = "unpark" if verdict is Verdict.PARKED else "reset" if record.attempts else "move"
    return Plan(step, f"{record.status} after {record.attempts} attempt(s)")


def _of_completed(record: Record, completed: OnCompleted, *, finished: bool, unknown: bool) -> Plan:
    if not finished and completed == "keep":
        why = "completed already: --completed drop deletes the message, --completed rerun runs it again"
        return Plan("keep", why)
    if unknown and record.fingerprint is not None:
        why = (
            "its key is completed, maybe with another input, which its consumer compares: say what it compares with --fingerprint, or "
            "this message's effect could be lost"
        )
        return Plan("keep", why)
    if finished:
        return Plan("finish", "an earlier run had begun to move it, and its effect has happened")
    if completed == "drop":
        return Plan("drop", "completed: its effect has happened")
    return Plan("rerun", "completed, and to run again as told")

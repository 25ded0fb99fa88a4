"""What a page shows of a record: its state in words, why it is so, and what a person can do."""

import re
from typing import Any, Final, NamedTuple

import msgspec

from onceward.aws.sqs.message import Kept, read_kept
from onceward.core.protocol import is_live, message_in
from onceward.core.record import COMPLETED, Record
from onceward.core.views import NextStep, is_expired, is_lapsed, last_change, next_step, relative
from onceward.errors import OncewardError
from onceward.results.message_entries import MessageEntry, unsent_of
from onceward.results.step_entries import Entry, doubt_about, entries_of
from onceward.terminal import lines

_ADVICE: Final = {
    NextStep.WAIT: "A worker holds this key. Wait for it. Parking or clearing the key refuses that worker's result.",
    NextStep.TAKE_OVER: "Its worker has vanished. The next delivery takes the key over. To stop that, park it.",
    NextStep.FORGOTTEN: "It is expired. Its next delivery runs the handler again.",
    NextStep.DONE: "Nothing to do. Duplicates get this result. Clearing the key lets the next delivery run again.",
    NextStep.AGAIN: "It was given back. Deliver it again to run it. To stop that, park it.",
    NextStep.UNPARK: "Fix the cause, then unpark it: the next delivery runs. Clearing the key forgets it.",
    NextStep.SEND: "Fix the cause, then send its message again. That also unparks the key.",
    NextStep.RELAY: "It is completed, and has messages to send. A relay sends them when they are due: is one running?",
    NextStep.DECIDE: "It is completed, and a target refused its messages. Fix the cause and send them again, or forget them.",
    NextStep.UPGRADE: "This version of onceward does not know its status, or a feature that it needs. Use the version that wrote it.",
}
_LONGEST: Final = 20_000  # characters of a text on a page; the link to its JSON has all
_NUMBERS = re.compile(r"[0-9a-f]{8,}(?:-[0-9a-f]{4,})*|\d+")


class Row(NamedTuple):
    """A record in a list.

    Attributes:
        state: its status, or LAPSED or EXPIRED.
        why: its error, its lease or its result.
        changed: when it was last written.
    """

    record: Record
    state: str
    why: str
    changed: float


def state_of(record: Record, now: float) -> str:
    """Return the status of a record, or LAPSED or EXPIRED."""
    if is_expired(record, now) and not is_live(record, now):
        return "EXPIRED"
    return "LAPSED" if is_lapsed(record, now) else record.status


def why(record: Record, now: float, *, hides_results: bool = False) -> str:
    """Return why a record is as it is, in one sentence."""
    if is_live(record, now):
        return f"{record.worker or 'a worker'} holds it; its lease ends {relative(record.lease_until, now)}"
    if is_lapsed(record, now):
        return f"{record.worker or 'its worker'} vanished; its lease ended {relative(record.lease_until, now)}"
    if record.error is not None or record.status != COMPLETED:
        return record.error or ""
    return "(hidden)" if hides_results and record.result is not None else record.result or ""


def reason(text: str) -> str:
    """Return an error without its numbers and ids, so that alike ones count together."""
    return _NUMBERS.sub("…", text.partition("\n")[0])[:160]


def row(record: Record, now: float, *, hides_results: bool) -> Row:
    """Return a record for a list."""
    cause = why(record, now, hides_results=hides_results)
    return Row(record, state_of(record, now), cause, last_change(record, now))


def advice(record: Record, now: float) -> str:
    """Return what a person can do about a record."""
    step = next_step(record, now)
    if step not in {NextStep.UNPARK, NextStep.SEND} or (doubt := doubt_about(record)) is None:
        return _ADVICE[step]
    effect = "its effect was made" if doubt.step is None else f"its step {doubt.step} was made"
    again = "retry it from that step" if doubt.step is not None else "unpark it"
    if step is NextStep.SEND:
        again = "send its message again"
    return (
        f"Ask the downstream whether {effect}. If not, {again}: the next delivery runs. If the effect is made, "
        "onceward settle completes the key with its result."
    )


def steps_of(record: Record) -> list[Entry] | str:
    """Return the recorded steps, or why they cannot be read."""
    try:
        return list(entries_of(record.steps).values())
    except ValueError as error:
        return str(error)


def kept_in(record: Record) -> Kept | str | None:
    """Return the message that a record keeps; its text if it cannot be read."""
    text = message_in(record)
    if text is None:
        return None
    try:
        return read_kept(text)
    except OncewardError:
        return text


def kept_place(stored: Kept | str) -> tuple[str | None, str]:
    """Return the id of a kept message and its queue; None and "" if its text cannot be read."""
    return (stored.message.id, stored.queue) if isinstance(stored, Kept) else (None, "")


def outbox_of(record: Record) -> list[MessageEntry] | str:
    """Return the messages that are not sent yet, or why they cannot be read."""
    try:
        return [] if record.unsent is None else unsent_of(record.unsent).messages
    except ValueError as error:
        return str(error)


def block(text: str) -> str:
    """Return a text of others with its newlines, and cut."""
    visible = lines(text[:_LONGEST])
    return visible if len(text) <= _LONGEST else f"{visible}…"


def pretty(text: str) -> str:
    """Return JSON with its lines and indents; anything else unchanged."""
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, RecursionError):  # a message of somebody else may be nested without end
        return text


def hidden(record: Record) -> Record:
    """Return a record without what its handler was given, returned and sent."""
    values: dict[str, Any] = {
        name: "(hidden)" for name in ("result", "steps", "unsent", "input") if getattr(record, name) is not None
    }
    return record._replace(**values)

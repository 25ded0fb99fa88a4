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
from onceward.results.step_entries import Doubt, Entry, doubt_about, entries_of
from onceward.terminal import lines, quoted

_NEXT: Final = {
    NextStep.WAIT: "wait for its worker; `onceward park KEY --yes` or `onceward clear KEY --yes` refuses that worker's result",
    NextStep.TAKE_OVER: "deliver it again to take it over, or stop that with `onceward park KEY`",
    NextStep.FORGOTTEN: "its next delivery runs again; `onceward purge` deletes expired records",
    NextStep.DONE: "nothing: duplicates get this result; `onceward clear KEY --yes` lets the next delivery run again",
    NextStep.AGAIN: "deliver it again to run it, or stop that with `onceward park KEY`",
    NextStep.UNPARK: "fix the cause, then `onceward unpark KEY` lets its next delivery run. If its message is a dead letter, use `onceward "
    "redrive`, which brings back both. `onceward clear KEY` forgets the key",
    NextStep.SEND: "fix the cause, then `onceward unpark KEY --to QUEUE` sends its message again",
    NextStep.RELAY: "nothing, if somebody sends its messages soon; else `onceward relay --once` does",
    NextStep.DECIDE: "fix the cause, then `onceward relay --retry KEY` sends them again; `onceward relay --drop KEY` forgets them",
    NextStep.UPGRADE: "look at it with the version of onceward that wrote it: this one does not know its status, or a feature that it needs",
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


def next_words(record: Record, now: float) -> str:
    """Return what to do next about a record, in words."""
    step = next_step(record, now)
    if step in {NextStep.UNPARK, NextStep.SEND} and (doubt := doubt_about(record)) is not None:
        return _ask(doubt, "`onceward unpark KEY --to QUEUE`" if step is NextStep.SEND else "`onceward unpark KEY`")
    if record.input is None or step not in {NextStep.TAKE_OVER, NextStep.AGAIN}:
        return _NEXT[step]
    completed = "complete" if step is NextStep.TAKE_OVER else "complete --released 0s"
    return f"`onceward {completed} --call MODULE:FUNCTION` runs it with its kept input; or {_NEXT[step]}"


def _ask(doubt: Doubt, again: str) -> str:
    """Say what to do about a parked key whose effect may have been made."""
    what = "its effect" if doubt.step is None else f"its step {doubt.step}"
    if doubt.step is not None:
        again = f"`onceward retry KEY --from {quoted(doubt.step)}`"
    return (
        f"ask the downstream whether {what} was made. If not, {again} lets its next delivery run; if the effect is made, "
        "`onceward settle KEY --result JSON` completes the key"
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

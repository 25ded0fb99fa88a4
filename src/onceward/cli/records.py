"""Shows records to people, and to programs as JSON."""

import shutil
import sys

from onceward.aws.sqs.kept import read_kept
from onceward.core.protocol import is_lapsed, is_live, message_in
from onceward.core.record import Record
from onceward.core.views import NextStep, last_change, next_step
from onceward.errors import OncewardError
from onceward.results.step_entries import Entry, entries_of
from onceward.stores.contract import Damaged
from onceward.terminal import json, line, lines, quoted

_STEPS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_ROW = "{:<11}  {:>8}  {:>11}  {:>11}  {:<32}  {:<20}  {}"

_NEXT = {
    NextStep.WAIT: "wait for its worker; `onceward park KEY --yes` or `onceward clear KEY --yes` refuses that worker's result",
    NextStep.TAKE_OVER: "deliver it again to take it over, or stop that with `onceward park KEY`",
    NextStep.FORGOTTEN: "its next delivery runs again; `onceward purge` deletes expired records",
    NextStep.DONE: "nothing: duplicates get this result; `onceward clear KEY` lets the next delivery run again",
    NextStep.AGAIN: "deliver it again to run it, or stop that with `onceward park KEY`",
    NextStep.UNPARK: "fix the cause, then `onceward unpark KEY` lets its next delivery run; `onceward clear KEY` forgets the key",
    NextStep.SEND: "fix the cause, then `onceward unpark KEY --to QUEUE` sends its message again",
    NextStep.UPGRADE: "look at it with the version of onceward that wrote it: this one does not know its status, or a feature that it needs",
}


def as_json(record: Record | Damaged) -> str:
    """Return all fields as one line of JSON; times are seconds since the epoch on the store's clock."""
    return json(record._asdict())


def heading() -> str:
    """Return the line above the rows."""
    return _ROW.format("STATUS", "ATTEMPTS", "CLAIMED", "CHANGED", "KEY", "WORKER", "RESULT OR ERROR")


def row(record: Record, now: float) -> str:
    """Return a record as one line, cut to the terminal's width when there is one."""
    text = line(" ".join(_outcome(record, now).split()))
    times = _claimed(record, now), relative(last_change(record, now), now)
    worker = line(record.worker or "")
    told = _ROW.format(line(record.status), record.attempts, *times, quoted(record.key), worker, text)
    if not sys.stdout.isatty():
        return told.rstrip()
    width = shutil.get_terminal_size().columns
    return told.rstrip() if len(told) <= width else told[: width - 1] + "…"


def details(record: Record, now: float, options: str = "") -> str:
    """Return a record as one field per line; ``options`` are those of the next commands, besides the key."""
    told = {
        "key": quoted(record.key),
        "status": record.status + (" (its worker has vanished)" if is_lapsed(record, now) else ""),
        "attempts": str(record.attempts),
        "first claimed": _claimed(record, now),
        "last change": relative(last_change(record, now), now),
        "worker": record.worker,
        "lease ends": relative(record.lease_until, now) if is_live(record, now) else None,
        "expires": "never" if record.expires_at is None else relative(record.expires_at, now),
        "error": record.error,
        **_recorded(record),
        "steps": _steps(record, now),
        "fingerprint": record.fingerprint,
        "needs": record.needs,
        "fence": str(record.fence),
        "owner": record.owner,
        "next": _NEXT[next_step(record, now)].replace(" KEY", f" {quoted(record.key)}{options}"),
    }
    return "\n".join(f"{name:<14} {_indented(value)}" for name, value in told.items() if value is not None)


def _recorded(record: Record) -> dict[str, str | None]:
    """Return the result, or the parts of the message that is kept in its place."""
    text = message_in(record)
    if text is None:
        return {"result": record.result}
    try:
        queue, message = read_kept(text)
    except OncewardError:
        return {"message": text}
    attributes = [f"{name}: {one.value!r} ({one.type})" for name, one in message.user_attributes.items()]
    return {
        "message": f"{message.id} of {queue}",
        "group": message.group,
        "attributes": "\n".join(attributes) or None,
        "body": message.body,
    }


def _steps(record: Record, now: float) -> str | None:
    """Return a line for each step."""
    try:
        entries = entries_of(record.steps).values()
    except ValueError as error:
        return f"(cannot be read: {error})"
    return "\n".join(_step(entry, now) for entry in entries) or None


def _step(entry: Entry, now: float) -> str:
    when = f"{relative(min(entry.at, now), now)}, attempt {entry.attempt}, {entry.worker}"
    if not entry.done:
        return f"{entry.name}: began {when}; nobody knows whether it was made"
    result = entry.text if entry.why is None else f"without a result: {entry.why}"
    return f"{entry.name}: made {when}, in {entry.took * 1000:.1f} ms: {result}"


def relative(time: float, now: float) -> str:
    """Return a time relative to now: ``12 s ago``, ``in 3 h``."""
    seconds = abs(time - now)
    size, unit = next((step for step in _STEPS if seconds >= step[0]), _STEPS[-1])
    span = f"{seconds / size:.0f} {unit}"
    return f"in {span}" if time > now else f"{span} ago"


def _claimed(record: Record, now: float) -> str:
    """Return when a key was claimed; a store whose clock counts whole seconds stamps ahead of what it shows."""
    return relative(min(record.created_at, now), now)


def _outcome(record: Record, now: float) -> str:
    if is_live(record, now):
        return f"lease ends {relative(record.lease_until, now)}"
    if is_lapsed(record, now):
        return f"lease lapsed {relative(record.lease_until, now)}"
    text = record.error if record.result is None or message_in(record) is not None else record.result
    return text or ""


def _indented(text: str) -> str:
    return lines(text).replace("\n", "\n" + " " * 15)

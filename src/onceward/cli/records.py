"""Shows records to people, and to programs as JSON."""

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from onceward.core.attempts import Attempt, attempts_of
from onceward.core.origin import read_origin
from onceward.core.protocol import is_live
from onceward.core.record import Record
from onceward.core.views import is_lapsed, last_change, relative
from onceward.core.writes import expiry_of
from onceward.dashboard.showing import kept_in, next_words, outbox_of, steps_of, why
from onceward.results.message_entries import MessageEntry
from onceward.results.outcomes import SEALED
from onceward.results.step_entries import Entry
from onceward.stores.contract import Damaged
from onceward.terminal import json, line, lines, quoted

T = TypeVar("T")
_ROW = "{:<11}  {:>8}  {:>11}  {:>11}  {:<32}  {:<20}  {}"


def as_json(record: Record | Damaged, now: float | None = None) -> str:
    """Return all fields as one line of JSON; times are seconds since the epoch on the store's clock.

    With the store's time ``now``, ``history`` is the list of its last attempts, with the one that its fields tell of.
    """
    fields = record._asdict()
    if now is not None and isinstance(record, Record):
        fields["history"] = [attempt._asdict() for attempt in attempts_of(record, now)]
    return json(fields)


def heading() -> str:
    """Return the line above the rows."""
    return _ROW.format("STATUS", "ATTEMPTS", "CLAIMED", "CHANGED", "KEY", "WORKER", "RESULT OR REASON")


def row(record: Record, now: float) -> str:
    """Return a record as one line, cut to the terminal's width when there is one."""
    text = line(" ".join(why(record, now).split()))
    times = claimed(record, now), relative(last_change(record, now), now)
    worker = line(record.worker or "")
    row = _ROW.format(line(record.status), record.attempts, *times, quoted(record.key), worker, text).rstrip()
    if sys.stdout.isatty() and len(row) > (width := shutil.get_terminal_size().columns):
        row = row[: width - 1] + "…"
    return row


def details(record: Record, now: float, options: str = "") -> str:
    """Return a record as one field per line; ``options`` are those of the next commands, besides the key."""
    facts = {
        "key": quoted(record.key),
        "status": record.status + (" (its worker has vanished)" if is_lapsed(record, now) else ""),
        "attempts": str(record.attempts),
        "first claimed": claimed(record, now),
        "last change": relative(last_change(record, now), now),
        "worker": record.worker,
        "lease ends": relative(record.lease_until, now) if is_live(record, now) else None,
        "expires": "never" if (expiry := expiry_of(record)) is None else relative(expiry, now),
        "error": record.error,
        "came from": None if (came := read_origin(record.origin)) is None else f"{came.parent} (first: {came.root})",
        **_recorded(record),
        "steps": _texts(steps_of(record), lambda entry: _step(entry, now)),
        "messages": _texts(outbox_of(record), lambda entry: _message(entry, record.due_at, now)),
        "input": "(sealed)" if (record.input or "").startswith(SEALED) else record.input,
        "attempts made": _attempts(record, now),
        "fingerprint": record.fingerprint,
        "needs": record.needs,
        "fence": str(record.fence),
        "owner": record.owner,
        "next": next_words(record, now).replace(" KEY", f" {quoted(record.key)}{options}"),
    }
    texts = {name: lines(value).replace("\n", "\n" + " " * 15) for name, value in facts.items() if value is not None}
    return "\n".join(f"{name:<14} {text}" for name, text in texts.items())


def _recorded(record: Record) -> dict[str, str | None]:
    """Return the result, or the parts of the message that is kept in its place."""
    content = kept_in(record)
    if content is None or isinstance(content, str):
        return {"result": record.result} if content is None else {"message": content}
    return {"message": f"{content.message.id} of {content.queue}", "body": content.message.body}


def _texts(entries: list[T] | str, text: Callable[[T], str]) -> str | None:
    """Return a line for each entry, or why they cannot be read."""
    if isinstance(entries, str):
        return f"(cannot be read: {entries})"
    return "\n".join(map(text, entries)) or None


def _message(entry: MessageEntry, due_at: float | None, now: float) -> str:
    if entry.refused is not None:
        return f"to {entry.to}: refused: {entry.refused} (key {entry.key})"
    when = "nobody sends them" if due_at is None else f"due {relative(due_at, now)}"
    tries = f", tried {entry.tries} time(s)" if entry.tries else ""
    return f"to {entry.to}: not sent yet, {when}{tries} (key {entry.key})"


def _attempts(record: Record, now: float) -> str | None:
    """Return a table of the last attempts; None if there is only the one that the record's fields tell of."""
    if record.history is None:
        return None
    rows: list[tuple[str, ...]] = [("", "BEGAN", "TOOK", "OUTCOME", "FENCE", "WORKER", "ERROR")]
    rows += [_attempt(one, now) for one in attempts_of(record, now)]
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines whose columns are below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _attempt(attempt: Attempt, now: float) -> tuple[str, ...]:
    began = "?" if attempt.begin is None else relative(min(attempt.begin, now), now)
    took = "?" if attempt.begin is None or attempt.end is None else f"{max(0.0, attempt.end - attempt.begin):.3g} s"
    error = line(" ".join((attempt.error or "").split()))
    return str(attempt.number), began, took, attempt.outcome, str(attempt.fence), line(attempt.worker or ""), error


def _step(entry: Entry, now: float) -> str:
    when = f"{relative(min(entry.at, now), now)}, attempt {entry.attempt}, {entry.worker}"
    if not entry.done:
        return f"{entry.name}: began {when}; nobody knows whether it was made"
    result = entry.why if entry.kept else entry.text if entry.why is None else f"without a result: {entry.why}"
    return f"{entry.name}: made {when}, in {entry.took * 1000:.1f} ms: {result}"


def claimed(record: Record, now: float) -> str:
    """Return when a key was claimed; a store whose clock counts whole seconds stamps ahead of what it shows."""
    return relative(min(record.created_at, now), now)

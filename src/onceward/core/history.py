"""The text of a record's ``history``: a line of JSON for each earlier attempt, the oldest first.

Every line begins with a newline. A line stays open, without its ``}``, until a later write knows when its attempt ended; it
then ends with its claim's fence. The next write of anybody closes it.

An attempt begins with its claim's write. The first one of a key began at ``created_at``, so it needs no text. For another
one, the next write of its claim notes the time: until then, ``updated_at`` has it.
"""

import re
from json import dumps
from typing import Final

from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record

MOST: Final = 2048  # bytes; all text is ASCII
LAPSED: Final = "LAPSED"  # the outcome of an attempt whose worker has vanished
LONGEST_WORKER: Final = 200
BY_HAND: Final = "by hand"  # the worker of a completion that a person made
TRACE: Final = 55  # characters of a W3C traceparent; another text is not added
_LONGEST_ERROR: Final = 500  # of its JSON, with the trace
LINE: Final = 580  # more than a line without an error has
_END: Final = 32  # more than the end of a line has
_BEGIN: Final = re.compile(r'"begin":([0-9]+e-3),')


def following(record: Record, status: str, error: str | None) -> str | None:
    """Return the history of a record's next version, which has this status and error."""
    if record.status != IN_PROGRESS:
        return closed(record)
    if status in {RELEASED, PARKED}:
        return ended(record, status, error)
    is_first = record.attempts == 1 and record.created_at == record.updated_at
    if is_first or record.beat or record.updated_at is None:
        return record.history
    return _tail(record.history, MOST - LINE) + _head(record)


def ended(record: Record, outcome: str, error: str | None) -> str:
    """Return the history with an open line for the record's own attempt."""
    entry = (
        f'{{"attempt":{record.attempts},"begin":{_time(begin(record))},"worker":{_worker(record)},"outcome":"{outcome}"'
    )
    trace = "" if record.worker == BY_HAND else _trace(record)
    if error is not None:
        entry += f',"error":{_error(error, _LONGEST_ERROR - len(trace))}'
    line = f"\n{entry}{trace},{_mark(record)}"
    return _tail(without_begin(record), MOST - len(line) - _END) + line


def closed(record: Record) -> str | None:
    """Return the history of a record that was given back or parked, with the end of its last attempt."""
    if record.history is None or not is_open(record):
        return record.history
    if record.status == COMPLETED:
        return record.history  # its line has the begin alone: the other fields are the record's
    return f'{record.history},"end":{_time(record.lease_until)}}}'


def lapsed(record: Record) -> str:
    """Return the history with a line for an attempt whose lease lapsed. Nobody knows when it ended."""
    head = "" if is_open(record) else _head(record)
    rest = f',"attempt":{record.attempts},"worker":{_worker(record)},"outcome":"{LAPSED}"{_trace(record)}}}'
    return _tail(record.history, MOST - LINE) + head + rest


def by_hand(record: Record) -> str:
    """Return the history of a record that a person completes, with an open line that says so."""
    before = lapsed(record) if record.status == IN_PROGRESS else closed(record)
    line = f'{{"attempt":{record.attempts},"begin":null,"worker":"{BY_HAND}","outcome":"{COMPLETED}",{_mark(record)}'
    return f"{_tail(before, MOST - LINE)}\n{line}"


def ends_lapsed(record: Record) -> bool:
    """Return whether the last attempt that is known ended because its lease lapsed."""
    return f'"outcome":"{LAPSED}"' in (record.history or "").rpartition("\n")[2]


def redone(record: Record) -> str:
    """Return the history of a completed record that somebody lets run again."""
    return f'{ended(record, COMPLETED, record.error)},"end":{_time(record.lease_until)}}}'


def without_begin(record: Record) -> str | None:
    """Return the history without the line that says when the current attempt began."""
    text = record.history
    return text[: text.rindex("\n")] or None if text is not None and is_open(record) else text


def is_open(record: Record) -> bool:
    """Return whether the last line is of the record's own attempt. Another version may have written since, and no history."""
    return record.history is not None and record.history.endswith(_mark(record))


def begin(record: Record) -> float | None:
    """Return when the record's last claim was made, or None if nobody knows."""
    if record.beat == 0:
        return record.updated_at
    if is_open(record):
        return _begin_in(record.history or "")
    return record.created_at if record.attempts == 1 and record.beat > 0 else None


def _begin_in(text: str) -> float | None:
    """Return the begin that the open last line notes."""
    match = _BEGIN.search(text, text.rindex("\n"))
    return None if match is None else float(match[1])


def _mark(record: Record) -> str:
    return f'"fence":{record.fence}'


def _head(record: Record) -> str:
    return f'\n{{"begin":{_time(begin(record))},{_mark(record)}'


def _time(at: float | None) -> str:
    """Return a time as a number of JSON: whole milliseconds."""
    return "null" if at is None else f"{round(at * 1000)}e-3"


def _worker(record: Record) -> str:
    if record.worker is None:
        return "null"
    return '"' + record.worker[:LONGEST_WORKER].replace("\\", "\\\\").replace('"', '\\"') + '"'


def _trace(record: Record) -> str:
    """Return the trace of the record's own attempt, if it has one. A span's trace needs no escapes (``observe/spans.py``)."""
    return f',"trace":"{record.trace}"' if record.trace is not None and len(record.trace) == TRACE else ""


def _error(error: str, most: int) -> str:
    text = error[:most]
    if text == error and len(literal := dumps(text)) <= most:
        return literal
    while len(literal := dumps(f"{text}…")) > most:
        text = text[: len(text) * 9 // 10]
    return literal


def _tail(text: str | None, most: int) -> str:
    """Return the last lines of a text that fit into ``most`` characters."""
    if text is None or len(text) <= most:
        return text or ""
    rest = text[len(text) - most :]
    return rest[rest.find("\n") :] if "\n" in rest else ""

"""What the admin shows of one key."""

from datetime import UTC, datetime
from typing import Any

from onceward.core.attempts import Attempt, attempts_of
from onceward.core.record import Record
from onceward.core.views import last_change, relative
from onceward.core.writes import expiry_of
from onceward.dashboard.showing import block, hidden, next_words, outbox_of, pretty, state_of, steps_of
from onceward.stores import audit
from onceward.stores.ledger import Ledger
from onceward.terminal import line


def story(ledger: Ledger, record: Record, now: float, *, payloads: bool) -> dict[str, Any]:
    """Return the names of the template.

    Args:
        ledger: for what people have done to the key.
        record: the key's.
        now: the store's time.
        payloads: whether to show what its handler was given, returned and sent.
    """
    visible = record if payloads else hidden(record)
    texts = {"input": visible.input, "result": visible.result}
    steps, messages = steps_of(record), outbox_of(record)
    return {
        "record": record,
        "state": state_of(record, now),
        "advice": next_words(record, now),
        "error": None if record.error is None else block(record.error),
        "facts": _facts(record, now),
        "attempts": [_attempt(one, now) for one in attempts_of(record, now)],
        "steps": [(one.name, one.done, one.why or _payload(one.text, payloads)) for one in _readable(steps)],
        "messages": [(one.to, one.refused, _payload(one.body, payloads)) for one in _readable(messages)],
        "texts": [(name, block(pretty(text))) for name, text in texts.items() if text is not None],
        "entries": audit.entries_of(ledger, record.key),
    }


def _readable(entries: Any) -> list[Any]:
    """Return entries; none if they are the text of an error."""
    return entries if isinstance(entries, list) else []


def _facts(record: Record, now: float) -> list[tuple[str, str]]:
    facts = {
        "attempts": str(record.attempts),
        "worker": line(record.worker or ""),
        "first claimed": _moment(record.created_at, now),
        "last change": _moment(last_change(record, now), now),
        "lease ends": _moment(record.lease_until, now) if record.lease_until > now else "",
        "expires": "never" if (expiry := expiry_of(record)) is None else _moment(expiry, now),
        "fence": str(record.fence),
        "owner": record.owner,
        "trace": line(record.trace or ""),
    }
    return [(name, value) for name, value in facts.items() if value]


def _attempt(one: Attempt, now: float) -> tuple[str, ...]:
    began = "" if one.begin is None else _moment(one.begin, now)
    took = "" if one.begin is None or one.end is None else f"{one.end - one.begin:.3f} s"
    return str(one.number), one.outcome, began, took, line(one.worker or ""), line(one.error or "")


def _moment(seconds: float, now: float) -> str:
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # another program's
        return f"{seconds:.0f} s"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({relative(seconds, now)})"


def _payload(text: str | None, shows: bool) -> str | None:
    return None if text is None else block(pretty(text)) if shows else "(hidden)"

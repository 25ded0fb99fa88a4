"""Shows records to people, and to programs as JSON: one, or the chain of its key."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple, TypeVar

import typer

from onceward import terminal
from onceward.cli.ledgers import TROUBLE, looking_at, refuse, say
from onceward.core.attempts import Attempt, attempts_of
from onceward.core.drivers import drive
from onceward.core.origin import CallOrigin, read_origin
from onceward.core.protocol import is_live
from onceward.core.record import Record
from onceward.core.selections import ChainOf
from onceward.core.views import is_lapsed, last_change, relative
from onceward.core.writes import expiry_of
from onceward.dashboard.showing import kept_in, next_words, outbox_of, state_of, steps_of, why
from onceward.results.message_entries import MessageEntry
from onceward.results.outcomes import SEALED
from onceward.results.step_entries import Entry
from onceward.stores.contract import Damaged, NoIndex, NotFound
from onceward.stores.ledger import Ledger
from onceward.stores.ledger_reader import PAGE
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
    """Return a record as one line."""
    text = line(" ".join(why(record, now).split()))
    times = claimed(record, now), relative(last_change(record, now), now)
    worker = line(record.worker or "")
    return _ROW.format(line(record.status), record.attempts, *times, quoted(record.key), worker, text).rstrip()


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


LONGEST: Final = 1000  # keys, after which nothing more is read
_FIELDS: Final = ("status", "attempts", "worker", "created_at", "updated_at")
_UNKNOWN: Final = "no record: expired, cleared, or in a ledger that is not named"


class ChainLink(NamedTuple):
    """A record of a chain, the time at its store, and where its message came from."""

    record: Record
    now: float
    came: CallOrigin | None


# Each key with its record in each ledger, by the ledger's URL. A key that has none is known by its name only.
_Links = dict[str, dict[str, ChainLink]]


def show_chain(key: str, urls: Iterable[str], *, json: bool) -> None:
    """Print the keys whose messages led to ``key``, and those that its messages led to.

    Args:
        key: in one of the ledgers.
        urls: of the ledgers.
        json: whether to print a line of JSON for each key.
    """
    with ExitStack() as opened:
        links = _links_of(key, [opened.enter_context(looking_at(url)) for url in urls])
        rows = [("KEY", "STATUS", "CLAIMED", "CHANGED", "WORKER", "LEDGER")]
        lines: list[dict[str, object]] = []
        for node, depth in _walk(links):
            head: dict[str, object] = {"key": node, "depth": depth}
            name = f"{'  ' * depth}{terminal.quoted(node)}{' <' if node == key else ''}"
            if not links[node]:
                rows.append((name, "", "", "", "", _UNKNOWN))
                lines.append(head | {"missing": True})
            for url, (record, now, came) in links[node].items():
                status = state_of(record, now) + " (unsent messages)" * (record.unsent is not None)
                times = claimed(record, now), relative(last_change(record, now), now)
                rows.append((name, status, *times, record.worker or "", url))
                root, parent = came or (node, None)
                fields = {name: getattr(record, name) for name in _FIELDS} | {"unsent": record.unsent is not None}
                lines.append(head | {"parent": parent, "root": root, "store": url} | fields)
        typer.echo(
            "\n".join(map(terminal.json, lines)) if json else table([[*map(terminal.line, row)] for row in rows])
        )


def _links_of(key: str, ledgers: Sequence[Ledger]) -> _Links:
    """Return the chain of ``key``. End the command if no ledger has that key."""
    links: _Links = {}
    todo = [key]
    while todo and len(links) < LONGEST:
        if (name := todo.pop()) in links:
            continue
        links[name] = {}
        for ledger in ledgers:
            with suppress(NotFound):
                todo += _add(ledger, *ledger.show(name), links)
        if name == key:
            if not links[key]:
                urls = ", ".join(ledger.store.url for ledger in ledgers)
                refuse(f"{key}: no such key in {urls}; `onceward ls` shows those there are", TROUBLE)
            roots = {key, *(link.came.root for link in links[key].values() if link.came)}
            for ledger in ledgers:
                try:
                    for root in roots:
                        todo += _descend(ledger, root, links)
                except NoIndex as error:
                    say(f"{error}. What messages led to in {ledger.store.url} is not shown")
    if len(links) >= LONGEST:
        say(f"a chain of {LONGEST} keys or more is not shown as a whole")
    return links


def _descend(ledger: Ledger, root: str, links: _Links) -> Iterator[str]:
    """Look in a ledger for the records whose chain begins at ``root``, and yield what they came from."""
    after, is_more = None, True
    while is_more and len(links) < LONGEST:
        page = drive(ledger.store.select(ChainOf(root), after, PAGE), ledger.store)
        for record in page.records:
            yield from _add(ledger, record, page.now, links)
        after, is_more = page.next, page.next is not None


def _add(ledger: Ledger, record: Record, now: float, links: _Links) -> Iterable[str]:
    """Note a record, and return the keys that it came from."""
    came = read_origin(record.origin)
    links.setdefault(record.key, {})[ledger.store.url] = ChainLink(record, now, came)
    return came or ()


def _walk(links: _Links) -> Iterator[tuple[str, int]]:
    """Yield each key once, and its depth."""
    parents: dict[str, str] = {}
    for key, by_url in links.items():
        for _, _, came in by_url.values():
            if came is not None:
                parents.setdefault(key, came.parent)
                if not links.get(came.parent):
                    parents.setdefault(came.parent, came.root)
    below: dict[str | None, list[str]] = defaultdict(list)
    for key in sorted(links, key=lambda key: min((link.record.created_at for link in links[key].values()), default=0)):
        parent = parents.get(key)
        below[parent if parent in links and parent != key else None].append(key)
    # Forged headers can make a circle, which has no top: begin anywhere.
    todo = [(key, 0) for key in (*below[None], *links)][::-1]
    seen = set()
    while todo:  # a chain can be deeper than Python's recursion
        key, depth = todo.pop()
        if key not in seen:
            seen.add(key)
            yield key, depth
            todo += [(child, depth + 1) for child in reversed(below[key])]

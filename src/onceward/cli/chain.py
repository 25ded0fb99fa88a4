"""The chain of a key: the keys whose messages led to it, and those that its messages led to, across ledgers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

import typer

from onceward import terminal
from onceward.cli.ledgers import TROUBLE, looking_at, refuse, say
from onceward.cli.records import claimed, table
from onceward.core.drivers import drive
from onceward.core.origin import CallOrigin, read_origin
from onceward.core.record import Record
from onceward.core.selections import ChainOf
from onceward.core.views import last_change, relative
from onceward.dashboard.showing import state_of
from onceward.stores.contract import NoIndex, NotFound
from onceward.stores.ledger import Ledger
from onceward.stores.ledger_reader import PAGE

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
        typer.echo("\n".join(map(terminal.json, lines)) if json else table([[*map(terminal.line, row)] for row in rows]))


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

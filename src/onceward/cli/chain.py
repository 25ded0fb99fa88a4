"""The chain of a key: ``onceward show KEY --chain``."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import typer

from onceward import terminal
from onceward.cli.ledgers import looking_at, say
from onceward.cli.records import claimed
from onceward.core.origin import read_origin
from onceward.core.views import is_lapsed, last_change, relative
from onceward.stores.chains import LONGEST, ChainLink, ChainNode, KeyChain, chain_of
from onceward.terminal import line, quoted

_UNKNOWN = "no record: expired, cleared, or in a ledger that is not named"


def show_chain(key: str, urls: Iterable[str], *, scan: bool, json: bool) -> None:
    """Print the keys whose messages led to ``key``, and those that its messages led to.

    Args:
        key: in one of the ledgers.
        urls: of the ledgers.
        scan: whether to read a ledger as a whole if it has no index by origin.
        json: whether to print a line of JSON for each key.
    """
    with ExitStack() as opened:
        ledgers = [opened.enter_context(looking_at(url)) for url in urls]
        chain = chain_of(key, ledgers, scan=scan)
        text = list(_as_json(chain)) if json else list(_as_tree(chain, key, several=len(ledgers) > 1))
        typer.echo("\n".join(text))
        for ledger in chain.unread:
            say(
                f"{ledger.store.url} has no index by origin: what messages led to there is not shown. --scan reads it as a whole; "
                "`onceward migrate` adds the index to PostgreSQL and SQLite"
            )
        if chain.cut:
            say(f"there are more than {LONGEST} keys, and the others are not shown")


def _nodes(chain: KeyChain) -> Iterator[tuple[ChainNode, int, str]]:
    """Yield each node, its depth, and the lines that lead to it."""
    todo = [(top, 0, "", "") for top in reversed(chain.tops)]
    while todo:
        node, depth, lead, below = todo.pop()
        yield node, depth, lead
        last = len(node.children) - 1
        for number, child in reversed(list(enumerate(node.children))):
            branch, stem = ("└─ ", "   ") if number == last else ("├─ ", "│  ")
            todo.append((child, depth + 1, below + branch, below + stem))


def _as_json(chain: KeyChain) -> Iterator[str]:
    for node, depth, _ in _nodes(chain):
        if not node.links:
            yield terminal.json({"key": node.key, "depth": depth, "missing": True})
        for record, _, ledger in node.links:
            came = read_origin(record.origin)
            fields = {
                "key": node.key,
                "depth": depth,
                "parent": None if came is None else came.parent,
                "root": node.key if came is None else came.root,
                "store": ledger.store.url,
                "status": record.status,
                "attempts": record.attempts,
                "worker": record.worker,
                "created_at": record.created_at,
                "updated_at": record.updated_at,
                "unsent": record.unsent is not None,
            }
            yield terminal.json(fields)


def _as_tree(chain: KeyChain, key: str, *, several: bool) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("KEY", "STATUS", "CLAIMED", "CHANGED", "WORKER", "LEDGER" if several else "")]
    for node, _, lead in _nodes(chain):
        name = f"{lead}{quoted(node.key)}{' <' if node.key == key else ''}"
        if not node.links:
            rows.append((name, _UNKNOWN))
        for number, link in enumerate(node.links):
            rows.append(
                (
                    name if number == 0 else " " * len(lead),
                    *_cells(link),
                    line(link.ledger.store.url) if several else "",
                )
            )
    widths = [max(len(row[place]) for row in rows if len(row) > 2) for place in range(len(rows[0]))]
    widths[0] = max(len(row[0]) for row in rows)
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()


def _cells(link: ChainLink) -> tuple[str, str, str, str]:
    record, now = link.record, link.now
    status = line(record.status)
    if is_lapsed(record, now):
        status += " (lapsed)"
    if record.unsent is not None:
        status += " (unsent messages)"
    return status, claimed(record, now), relative(last_change(record, now), now), line(record.worker or "")

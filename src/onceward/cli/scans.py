"""The commands that read a whole ledger, or a part of it: ls, purge and stats."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import typer
from typer import Option

from onceward import terminal
from onceward.cli.ledgers import (
    DEFAULT_STORE,
    JsonOption,
    StoreOption,
    looking_at,
    refuse,
    say,
    seconds,
    usage,
)
from onceward.cli.records import as_json, heading, row
from onceward.core.views import STATES, Criteria, last_change, relative
from onceward.stores.contract import Damaged


def _in_utf_8(prefix: str) -> str:
    """Return a prefix. If it is not UTF-8, end the command: no ledger holds it."""
    if prefix.encode("utf-8", "replace").decode() != prefix:
        refuse(f"--prefix {prefix}: give it in UTF-8")
    return prefix


PrefixOption = Annotated[str, Option(metavar="P", help="Only keys that start with P.", callback=_in_utf_8)]
StatusOption = Annotated[
    list[str] | None,
    Option(metavar="S", help=f"Only {', '.join(STATES)}. Repeat it for several statuses.", show_default="any"),
]
OlderOption = Annotated[
    str | None,
    Option(metavar="T", help="Only records that have not changed for T, as 90s, 10m, 1h or 7d.", show_default="any"),
]
LimitOption = Annotated[int | None, Option(min=0, metavar="N", help="At most N records.", show_default="all")]


def ls(
    *,
    store: StoreOption = DEFAULT_STORE,
    prefix: PrefixOption = "",
    status: StatusOption = None,
    older_than: OlderOption = None,
    newer_than: Annotated[str | None, Option("--newer-than", "--since")] = None,
    limit: LimitOption = None,
    namespaces: bool = False,
    json: JsonOption = False,
) -> None:
    """List the records. DynamoDB lists them in no order, other ledgers in the order of their keys.

    PostgreSQL, MySQL and Redis have an index of records that are not COMPLETED, SQLite of records that are PARKED or
    RELEASED. For any other list, the whole ledger is read. Ages count from the last change, on the ledger's own clock.

    With --namespaces it counts the records of each namespace. This reads the whole ledger. If nobody writes to a namespace
    any more, its function may have been renamed: name="OLD.NAME" gives the function its keys back.

    Options:
        newer_than (T): Only records that changed within the last T. By default: any.
        namespaces: Count the records of each namespace, and show its last write.
    """
    criteria = _criteria(status or [], older_than, newer_than)
    if namespaces:
        if limit is not None:
            refuse("--namespaces counts all records: leave --limit out")
        _namespaces(store, prefix, criteria, json=json)
        return
    count, is_all = 0, False
    with looking_at(store) as ledger:
        for page in ledger.pages(prefix, *criteria, limit=limit):
            lines = [as_json(record) if json else row(record, page.now) for record in page.records]
            if lines and not count and not json:
                typer.echo(heading())
            count, is_all = count + len(lines), page.next is None
            lines[:0] = _damaged(page.damaged, json=json)
            if lines:
                typer.echo("\n".join(lines))
        if not is_all and count == limit:
            say("there may be more")


def _criteria(states: list[str], older_than: str | None, newer_than: str | None) -> Criteria:
    ages = seconds("--older-than", older_than), seconds("--newer-than", newer_than)
    criteria = Criteria(tuple(state.upper() for state in states), *ages)
    with usage():
        criteria.check()
    return criteria


def _namespaces(store: str, prefix: str, criteria: Criteria, *, json: bool) -> None:
    namespaces: dict[str, tuple[int, float]] = {}
    now = 0.0
    with looking_at(store) as ledger:
        for record, now in ledger.records(prefix, criteria.states or None, *criteria[1:]):
            name = record.key.partition(":")[0]
            count, last = namespaces.get(name, (0, 0.0))
            namespaces[name] = count + 1, max(last, last_change(record, now))
        rows = sorted(namespaces.items(), key=lambda row: -row[1][1])
        if json:
            lines = [terminal.json({"namespace": name, "records": n, "last_write": last}) for name, (n, last) in rows]
        else:
            lines = [f"{n:>10}  {relative(last, now):>11}  {terminal.quoted(name)}" for name, (n, last) in rows]
            lines.insert(0, f"{'RECORDS':>10}  {'LAST WRITE':>11}  NAMESPACE")
        if rows:
            typer.echo("\n".join(lines))


def purge(
    store: StoreOption = DEFAULT_STORE,
    prefix: PrefixOption = "",
    older_than: OlderOption = None,
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the expired records now. Without this command, writes delete a few at a time. In DynamoDB, the TTL deletes them within days.

    After --limit or ctrl-C, run it again: it deletes what is left.

    With --prefix and --older-than it deletes COMPLETED records of a namespace that have not changed for that time, even
    if they have not expired. A later duplicate runs again. Give that namespace a shorter retention=, too.
    """
    age = seconds("--older-than", older_than)
    if bool(prefix) != (age is not None):
        refuse("give --prefix and --older-than together to delete what has not expired")
    with looking_at(store) as ledger:
        if age is not None:
            deleted, is_all = sum(1 for _ in islice(ledger.retire(prefix, age), limit)), True
        else:
            deleted, is_all = 0, False
            for batch in ledger.purging(limit=limit):
                deleted, is_all = deleted + batch.deleted, batch.next is None
                _damaged(batch.damaged, json=False)
        typer.echo(terminal.json({"purged": deleted}) if json else f"{deleted} record(s) deleted")
        if not is_all:
            say("there may be more: run it again")


def stats(prefix: PrefixOption = "", store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Count the records by status. `lapsed` records are in progress, but their worker is gone. `expired` records await deletion.

    In a large ledger in PostgreSQL, MySQL or Redis, an index counts the records that are not COMPLETED. The number of
    COMPLETED records can then be an estimate, and is marked as one; with --json, `estimated` names the estimates. Other
    ledgers, and parts of a ledger, are read as a whole.
    """
    counts, estimated = dict[str, int](), frozenset[str]()
    with looking_at(store) as ledger:
        if not prefix and (estimate := ledger.estimate()) is not None:
            counts, estimated = estimate
            marks: dict[str, object] = {"estimated": sorted(estimated)}
        else:
            marks = {}
            for part in ledger.counting(prefix, on_damaged=lambda one: _damaged([one], json=False)):
                counts = part
    lines = [f"{name:<12} {count:>10}{'  estimated' * (name in estimated)}" for name, count in counts.items()]
    typer.echo(terminal.json(counts | marks) if json else "\n".join(lines))


def _damaged(damaged: Sequence[Damaged], *, json: bool) -> list[str]:
    """Say which records cannot be read, and return them as lines of JSON."""
    for one in damaged:
        say(f"skipped {terminal.quoted(one.key)}, which cannot be read: {one.why}; `onceward clear KEY` deletes it")
    return [terminal.json({"key": one.key, "damaged": one.why}) for one in damaged] if json else []

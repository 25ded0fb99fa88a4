"""The commands that read a whole ledger, or a part of it: ls, purge, stats and reconcile."""

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
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
from onceward.core.views import STATES, Criteria
from onceward.errors import KeyMissing
from onceward.stores.contract import Damaged
from onceward.stores.reconciling import Mismatched, Naming, mismatches

DIFFERENT = 3


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
    json: JsonOption = False,
) -> None:
    """List the records. DynamoDB lists them in no order, other ledgers in the order of their keys.

    PostgreSQL, MySQL and Redis have an index of records that are not COMPLETED, SQLite of records that are PARKED or
    RELEASED. For any other list, the whole ledger is read. Ages count from the last change, on the ledger's own clock.

    Options:
        newer_than (T): Only records that changed within the last T. By default: any.
    """
    criteria = _criteria(status or [], older_than, newer_than)
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


def reconcile(
    against: str,
    store: StoreOption = DEFAULT_STORE,
    name: str | None = None,
    derived: str | None = None,
    newer_than: str | None = None,
    settle: str = "5m",
    json: JsonOption = False,
) -> None:
    """Compare the completed keys with what the downstream says it did.

    It lists effects without a completed record, completed records without an effect, and effects that were made more
    than once. It changes nothing. The exit status is 0 if both agree, and 3 if they do not.

    The file has keys as `onceward ls` shows them, unless you give --name or --derived. The command reads the ledger
    once, or only the namespace of --name. It counts keys in a temporary file, so there is no limit.

    Options:
        against (FILE): A CSV file with a header and the keys of the effects in its column key; - is the standard input.
        name (NAMESPACE): The effects have the keys of this namespace, without the namespace.
        derived (PURPOSE): The effects have the keys that claim.key(PURPOSE) returns; give an empty text for claim.key().
        newer_than (DURATION): Only records that changed within this time. Not with --derived.
        settle (DURATION): A period of grace: report a missing effect only if its key was completed longer ago than this.
    """
    within, ripe = seconds("--newer-than", newer_than), seconds("--settle", settle) or 0.0
    if derived is not None and within is not None:
        refuse("--newer-than: an effect with a derived key does not lead to its older record: leave it out")
    counts: Counter[str] = Counter()
    with looking_at(store) as ledger:
        try:
            effects = effects_of(against)
            for one in mismatches(ledger, effects, Naming(name, derived), newer_than=within, settle=ripe):
                counts[one.what] += 1
                typer.echo(terminal.json(one._asdict()) if json else _difference(one))
        except (KeyMissing, ValueError, TypeError) as error:
            refuse(f"--against {against}: {str(error).removeprefix(': ')}")
    say(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())) or "ledger and downstream agree")
    raise typer.Exit(DIFFERENT if counts else 0)


def _difference(one: Mismatched) -> str:
    if one.what == "record without an effect":
        return f"{one.what}: {terminal.quoted(one.key)}"
    status = "no record" if one.status is None else one.status
    times = f", made {one.times} times" if one.times > 1 else ""
    return f"{one.what}: {terminal.quoted(one.key)} ({status}{times})"


def effects_of(path: str) -> Iterator[str]:
    """Yield the key of each effect. The file is not read into memory as a whole.

    Args:
        path: of a CSV file in UTF-8 with a header, or ``-`` for the standard input. The keys are in its column ``key``,
            or its only one.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        file = sys.stdin if path == "-" else open(path, newline="", encoding="utf-8-sig")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ValueError(str(error.strerror)) from error
    with closing(file):
        rows = csv.DictReader(file)
        try:
            header = rows.fieldnames or ()
            name = "key" if len(header) != 1 else header[0]
            if name not in header:
                raise ValueError(
                    f"it has no column {name!r}, only {', '.join(header) or 'none'}; rename the one with the keys"
                )
            for row in rows:
                if row[name] is None:
                    raise ValueError(f"line {rows.line_num} has no {name}")
                yield row[name]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"line {rows.line_num}: {error}") from error

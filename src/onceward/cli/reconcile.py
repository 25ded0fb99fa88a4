"""The command that compares a ledger with what its downstream did: reconcile."""

import csv
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import typer

from onceward import terminal
from onceward.cli.ledgers import DEFAULT_STORE, JsonOption, StoreOption, looking_at, refuse, say, seconds
from onceward.errors import KeyMissing
from onceward.stores.reconciling import Mismatched, Naming, mismatches
from onceward.terminal import quoted

DIFFERENT = 3


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
    try:
        with looking_at(store) as ledger:
            effects = effects_of(against)
            rows = mismatches(ledger, effects, Naming(name, derived), newer_than=within, settle=ripe)
            for one in _with_keys(rows, against):
                counts[one.what] += 1
                typer.echo(terminal.json(one._asdict()) if json else _line(one))
    except (ValueError, TypeError) as error:
        refuse(f"--against {error}")
    say(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())) or "ledger and downstream agree")
    raise typer.Exit(DIFFERENT if counts else 0)


def _with_keys(rows: Iterator[Mismatched], against: str) -> Iterator[Mismatched]:
    try:
        yield from rows
    except KeyMissing as error:
        raise ValueError(f"{against}: the key of an effect, or a part of it, is empty or missing") from error


def _line(one: Mismatched) -> str:
    if one.what == "record without an effect":
        return f"{one.what}: {quoted(one.key)}"
    status = "no record" if one.status is None else one.status
    times = f", made {one.times} times" if one.times > 1 else ""
    return f"{one.what}: {quoted(one.key)} ({status}{times})"


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
        raise ValueError(f"{path}: {error.strerror}") from error
    with closing(file):
        rows = csv.reader(file)
        try:
            header = next(rows, [])
            name = "key" if len(header) != 1 else header[0]
            if name not in header:
                raise ValueError(
                    f"{path}: it has no column {name!r}, only {', '.join(header) or 'none'}; rename the one with the keys"
                )
            at = header.index(name)
            for row in filter(None, rows):
                if len(row) <= at:
                    raise ValueError(f"{path}: line {rows.line_num} has no {name}")
                yield row[at]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path}: line {rows.line_num}: {error}") from error

"""What a downstream says it did, as keys: from a function, a CSV file, or a SELECT. Nothing is read into memory as a whole."""

import csv
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from onceward.core.urls import encoded_url
from onceward.pipe.functions import imported

_OURS = frozenset({"table", "schema", "lanes", "timeout"})  # of a ledger in PostgreSQL, and not libpq's
_PAGE = 1000  # rows of a database that are fetched at a time


def effects_of(source: str, *, column: str | None = None, database: str | None = None) -> Iterator[object]:
    """Yield the key of each effect.

    Args:
        source: ``module:function``, whose function takes nothing and returns keys; the path of a CSV file with a header, or
            ``-`` for the standard input; or a SELECT, whose rows are the keys.
        column: the column with the keys in a CSV file; None is ``key``, or the only one.
        database: where to run a SELECT: ``sqlite:///PATH`` or ``postgresql://USER@HOST/DATABASE``.

    Raises:
        ValueError: the source is not valid, or cannot be read.
    """
    if source.lower().split(maxsplit=1)[:1] in (["select"], ["with"]):
        return _of_query(source, database)
    if source == "-" or source.lower().endswith(".csv"):
        return _of_csv(source, column)
    if ":" in source:
        return _of_function(imported(source, ""), source)
    raise ValueError(f"{source}: give module:function, a .csv file, or a SELECT")


def _of_function(function: Callable[..., object], source: str) -> Iterator[object]:
    try:
        yield from cast("Iterable[object]", function())
    except Exception as error:  # it is the user's
        raise ValueError(f"{source}: {type(error).__name__}: {error}") from error


def _of_csv(path: str, column: str | None) -> Iterator[object]:
    try:
        file = sys.stdin if path == "-" else open(path, newline="", encoding="utf-8-sig")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    with closing(file):
        rows = _rows_of(file, path)
        header, _ = next(rows, ([], 0))
        name = column or ("key" if len(header) != 1 else header[0])
        if name not in header:
            raise ValueError(f"{path}: it has no column {name!r}, only {', '.join(header) or 'none'}; give --column")
        at = header.index(name)
        for row, line in rows:
            if row:
                if len(row) <= at:
                    raise ValueError(f"{path}: line {line} has no {name}")
                yield row[at]


def _rows_of(file: Iterable[str], path: str) -> Iterator[tuple[list[str], int]]:
    """Yield each row with the number of its last line."""
    reader = csv.reader(file)
    try:
        for row in reader:
            yield row, reader.line_num
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: this is no CSV file in UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{path}: line {reader.line_num}: {error}") from error


def _of_query(query: str, database: str | None) -> Iterator[object]:
    """Yield the rows of a query. The URL may be a ledger's, with options that mean nothing here."""
    parts = urlsplit(encoded_url(database or ""))
    if parts.scheme == "sqlite":
        return _of_sqlite(query, unquote(parts.path.removeprefix("/")))
    if parts.scheme in {"postgresql", "postgres"}:
        theirs = [(name, value) for name, value in parse_qsl(parts.query) if name not in _OURS]
        return _of_postgres(query, parts._replace(query=urlencode(theirs, quote_via=quote)).geturl())
    raise ValueError("a SELECT needs --database: sqlite:///PATH or postgresql://USER@HOST/DATABASE")


def _of_sqlite(query: str, path: str) -> Iterator[object]:
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            for row in connection.execute(query):
                yield row[0] if len(row) == 1 else tuple(row)
    except sqlite3.Error as error:
        raise ValueError(f"{path}: {error}") from error


def _of_postgres(query: str, url: str) -> Iterator[object]:
    try:
        import psycopg
    except ImportError as error:
        raise ValueError("a SELECT in PostgreSQL needs psycopg: pip install 'onceward[postgres]'") from error
    try:
        with psycopg.connect(url) as connection, connection.cursor(name="onceward_effects") as cursor:
            cursor.itersize = _PAGE
            cursor.execute(query.encode())
            for row in chain(cursor):
                yield row[0] if len(row) == 1 else tuple(row)
    except psycopg.Error as error:
        raise ValueError(f"the database: {error}") from error

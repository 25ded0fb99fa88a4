"""SQL databases of pipelines: blocking connections by a URL like a ledger's, and statements with named parameters.

A value never becomes a part of a statement's text: the driver sends or quotes it.
"""

import contextlib
import os
import re
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal
from urllib.parse import quote, unquote, urlencode
from weakref import WeakSet

from onceward.core.clock import boottime
from onceward.pipelines.call import text_of
from onceward.pipelines.kit import Field, Kit, absolute
from onceward.stores import url_parts

Dialect = Literal["sqlite", "postgresql", "mysql"]
# What can hide a colon: texts, quoted names and comments, as each database writes them.
_COMMENTS: Final = r"--[^\n]*|/\*.*?\*/"
_PLAIN: Final = r"'(?:[^']|'')*'"
_ESCAPED: Final = r"'(?:[^'\\]|\\.|'')*'"
_OPAQUE: Final[dict[Dialect, str]] = {
    "sqlite": rf'{_PLAIN}|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|{_COMMENTS}',
    "postgresql": rf'\b[eE]{_ESCAPED}|{_PLAIN}|"(?:[^"]|"")*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|{_COMMENTS}|::',
    "mysql": rf'{_ESCAPED}|"(?:[^"\\]|\\.|"")*"|`[^`]*`|{_COMMENTS}|\#[^\n]*',
}
_NAME: Final = r":(?P<name>[A-Za-z_]\w*)"
# They end a transaction that onceward itself ends.
_ENDING: Final = frozenset({"abort", "begin", "commit", "end", "release", "rollback", "savepoint", "start", "xa"})
# The first words of MySQL's statements that commit nothing by themselves (MySQL Reference Manual, 15.3.3).
_MYSQL: Final = frozenset(
    {"call", "delete", "do", "explain", "insert", "replace", "select", "show", "table", "update", "values", "with"}
)
_EXECUTED: Final = re.compile(r"/\*M?!")  # MySQL and MariaDB run what is in such a comment


class Statement:
    """One statement.

    Attributes:
        names: of its parameters.

    Raises:
        ValueError: it is several statements, ends the transaction that it runs in, or has parameters without a name.
    """

    def __init__(self, text: str, dialect: Dialect) -> None:
        names: dict[str, None] = {}
        rendered, bare = "", ""  # bare: its own words, without texts and comments
        for match in re.finditer(rf"{_NAME}|(?P<opaque>{_OPAQUE[dialect]})|.", text, re.DOTALL):
            piece = match[0]
            if match["name"] is not None:
                names[match["name"]] = None
                rendered += piece if dialect == "sqlite" else f"%({match['name']})s"
                bare += "x"
                continue
            # The drivers of PostgreSQL and MySQL read a percent sign anywhere, also in a text.
            rendered += piece if dialect == "sqlite" else piece.replace("%", "%%")
            bare += piece if match["opaque"] is None else " " if piece.startswith(("--", "/*", "#")) else "''"
            if dialect == "mysql" and match["opaque"] is not None and _EXECUTED.match(piece):
                raise ValueError("MySQL runs what is in a comment /*! ... */: write it without")
        self.text, self.names = rendered, tuple(names)
        parts = [part.split() for part in bare.lower().split(";") if part.strip()]
        if not parts:
            raise ValueError("there is no statement")
        first = parts[0][0]
        has_inner = dialect == "sqlite" and first == "create"  # a trigger has statements in it
        if len(parts) > 1 and not has_inner:
            raise ValueError(
                "there is more than one statement here, and each would need a record: give each its own step"
            )
        word = (re.findall(r"\w+", " ".join(parts[0])) or [first])[0]
        if dialect == "mysql" and word not in _MYSQL:
            dialects = ", ".join(sorted(word.upper() for word in _MYSQL))
            raise ValueError(
                f"{word.upper()} can end the transaction that this statement runs in. Only onceward may end it. On "
                f"MySQL, give one of {dialects}"
            )
        if first in _ENDING or parts[0][:2] == ["prepare", "transaction"]:
            raise ValueError(
                f"{first.upper()} ends the transaction that this statement runs in. Only onceward may end it"
            )


# The library that each needs, and the extra that brings it.
_LIBRARIES: Final[dict[str, tuple[str, str]]] = {
    "postgresql": ("psycopg", "postgres"),
    "mysql": ("pymysql", "mysql"),
}
_WAIT: Final = 30.0  # seconds for a lock of SQLite, and for an answer of MySQL
# So that a PostgreSQL that has vanished from the network holds no message for ever; the URL can say otherwise.
_POSTGRES: Final = {"connect_timeout": "10", "keepalives_idle": "30", "tcp_user_timeout": "60000"}
_IDLE: Final = 5.0  # seconds after which a connection is asked whether it still works: a server can have been restarted


class Database:
    """A database. Any number of threads can use it, each with a connection of its own.

    Args:
        url: ``sqlite:///file.db``, ``postgresql://user@host/db`` or ``mysql://user@host/db``, as for a ledger.

    Attributes:
        url: as given.
        dialect: which SQL it speaks.

    Raises:
        ValueError: the URL names no SQL database.
    """

    def __init__(self, url: str) -> None:
        self.url, (self._parts, self._options) = url, url_parts(url)
        dialect = self._parts.scheme.replace("mariadb", "mysql")
        if dialect not in _OPAQUE:
            raise ValueError(f"{self._parts.scheme}: is not an SQL database: give sqlite:, postgresql: or mysql:")
        if dialect == "sqlite" and self._parts.path in {"", "/", "/:memory:"}:
            raise ValueError(
                "name a file, as in sqlite:///orders.db: in memory, each connection would have another database"
            )
        self.dialect = dialect
        self._idle: deque[tuple[float, Any]] = deque()  # since when, and the connection
        self._process = os.getpid()
        self._seen: WeakSet[Any] = WeakSet()
        self._first = threading.Lock()

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        """Yield a connection that is in no transaction, and commits each statement. After an error it is closed."""
        if self._process != os.getpid():  # a fork: they are the parent's
            self._idle, self._process = deque(), os.getpid()
        connection = self._working() or self._connected()
        try:
            yield connection
        except BaseException:
            with contextlib.suppress(Exception):
                connection.close()
            raise
        self._idle.append((boottime(), connection))

    @contextlib.contextmanager
    def one_by_one_at_first(self, connection: Any) -> Iterator[None]:
        """Let connections begin their first transactions with a ledger one after the other.

        In it, the ledger asks in a session of its own whether both are in one database. Behind PgBouncer, transactions that hold
        all of its sessions would wait for each other.
        """
        if self.dialect == "sqlite" or connection in self._seen:
            yield
            return
        with self._first:
            yield
        self._seen.add(connection)

    def execute(self, connection: Any, statement: Statement, values: Mapping[str, object]) -> dict[str, object]:
        """Run a statement. Return its rows as dicts, and how many rows it changed or found."""
        parameters = {  # no driver takes lists and objects
            name: text_of(value) if isinstance(value := values[name], list | dict) else value
            for name in statement.names
        }
        return self.run(connection, statement.text, parameters)

    def run(self, connection: Any, text: str, values: Mapping[str, object] | None = None) -> dict[str, object]:
        """Run a text of this program."""
        cursor = connection.cursor()
        cursor.execute(text, values or {})
        rows: list[dict[str, object]] = []
        if cursor.description is not None:
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        count = cursor.rowcount
        cursor.close()
        return {"rows": rows, "count": max(count, len(rows))}

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            with contextlib.suppress(Exception):
                self._idle.pop()[1].close()

    def _working(self) -> Any:
        """Return an idle connection that works; None if there is none. A message must not fail for each that does not."""
        while self._idle:
            try:
                since, connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if self.dialect == "sqlite" or boottime() - since < _IDLE:
                return connection
            try:
                self.run(connection, "SELECT 1")
            except Exception:
                with contextlib.suppress(Exception):
                    connection.close()
                self.close()  # the others were idle for longer, and each could take as long to find out
            else:
                return connection
        return None

    def _connected(self) -> Any:
        if self.dialect == "sqlite":
            path = unquote(self._parts.path.removeprefix("/"))
            return sqlite3.connect(path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
        if self.dialect == "postgresql":
            import psycopg
            from psycopg.conninfo import conninfo_to_dict

            from onceward.stores.postgres import OPTIONS

            theirs = {name: value for name, value in self._options.items() if name not in OPTIONS}
            place = self._parts._replace(query=urlencode(theirs, quote_via=quote))
            # Behind PgBouncer, a prepared statement is in another session, or another client's has its name.
            options: Any = _POSTGRES | conninfo_to_dict(place.geturl())
            return psycopg.connect(**options, autocommit=True, prepare_threshold=None)
        import pymysql

        from onceward.stores.mysql import place_of

        return pymysql.connect(
            **place_of(self._parts, dict(self._options)),
            autocommit=True,
            init_command="SET autocommit = 1",  # the server's init_connect may have switched it off, unseen by the driver
            charset="utf8mb4",
            read_timeout=_WAIT,
            write_timeout=_WAIT,
        )


def opened(kit: "Kit", field: "Field", url: str) -> Database | None:
    """Return the database of a URL, or note what is wrong with it. It is closed when the run ends."""
    with kit.noting(field):
        database = Database(absolute(url, kit.folder))
        library = _LIBRARIES.get(database.dialect)
        if library is None or kit.needs(field, *library):
            kit.closing(database.close)
            return database
    return None

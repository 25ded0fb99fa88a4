"""The schema of a MySQL or MariaDB ledger. It changes by adding, so that an earlier version's code works on the same table.

Times are whole microseconds since the epoch, as numbers: no time zone of a session changes them. Texts compare byte by byte, and
their trailing spaces count: a key is never taken for another one.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceward.core.protocol import STATUSES
from onceward.core.record import COMPLETED
from onceward.errors import StoreError

VERSION: Final = 1  # code that does not know it refuses the ledger
MINOR: Final = 1  # counts what was added since; the ledger calls it its layout
ADDED: Final[dict[str, str]] = {}  # columns that a ledger of a lower minor may lack
PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
LONGEST: Final = 50  # characters of a table's name: the server allows 64, and the second table's is longer
LONGEST_KEY: Final = 760  # characters of a key: InnoDB's index takes 3072 bytes, and a character has up to 4
UNFINISHED: Final = STATUSES - {COMPLETED}  # what an index finds
_TAKEN: Final = "_meta"  # what belongs to a ledger ends with this
OLDEST: Final = {True: (10, 6), False: (8, 0, 17)}  # of MariaDB, of MySQL
# What the records of a chain have in common (core/origin.py). An index of whole origins would be too long.
ROOT: Final = """crc32(substring_index({}, '"parent":"', 1))"""

_COLUMNS: Final = {  # type, what it is
    "key": (f"varchar({LONGEST_KEY}) NOT NULL", "namespace and key of one operation"),
    "status": ("varchar(32) NOT NULL", "IN_PROGRESS, COMPLETED, RELEASED or PARKED"),
    "owner": ("longtext NOT NULL", "random id of the last claim"),
    "fence": ("bigint NOT NULL", "fencing token: it only grows over the life of a key"),
    "beat": ("bigint NOT NULL", "writes of this claim so far"),
    "lease_until": ("bigint NOT NULL", "when another worker may take the key over, in microseconds since 1970"),
    "attempts": ("bigint NOT NULL", "claims since the key was last completed or cleared"),
    "fingerprint": ("longtext", "hash of the input"),
    "result": ("longtext", "what duplicates get, as JSON; for a PARKED key, the message that it keeps"),
    "error": ("longtext", "why the last attempt failed, or the result is missing"),
    "created_at": ("bigint NOT NULL", "the first claim"),
    "expires_at": ("bigint", "when the record may be purged, if no lease is live; NULL is never"),
    "updated_at": ("bigint", "the last write"),
    "worker": ("longtext", "who made the last claim: host/process"),
    "needs": ("longtext", "features that code must know to touch this key"),
    "steps": ("longtext", "what is recorded of each step of the handler, as JSON"),
    "unsent": ("longtext", "messages that were committed with the completion and are not sent yet, as JSON"),
    "due_at": ("bigint", "when anybody can send them; until then, somebody may be sending"),
    "origin": ("longtext", "from whose message this call came, as JSON"),
    "input": ("longtext", "the arguments of the handler, if they are kept, as JSON"),
    "history": ("longtext", "the last attempts, as JSON lines"),
    "trace": ("longtext", "W3C traceparent of the last run"),
    "write_id": ("bigint", "random number of the last write, by which its writer knows it"),
    # A NULL means that the other index entries come first: these two replace partial indexes.
    "unfinished": (f"tinyint AS (if(status = '{COMPLETED}', NULL, 1)) STORED", "1 if the record is not completed"),
    "root": (f"int unsigned AS ({ROOT.format('origin')}) STORED", "hash of where the chain of messages began"),
}
INDEXES: Final = {"expiry": "expires_at", "due": "due_at", "open": "unfinished", "origin": "root"}


class Flavor(NamedTuple):
    """Which server it is.

    Attributes:
        mariadb: whether it is MariaDB: it takes several statements as one, and an insert returns its rows.
        version: its number.
    """

    mariadb: bool
    version: tuple[int, ...]

    @property
    def collation(self) -> str:
        """The order of the ledger's texts: byte by byte, without padding."""
        return "utf8mb4_nopad_bin" if self.mariadb else "utf8mb4_0900_bin"


MARIADB: Final = Flavor(True, OLDEST[True])
MYSQL: Final = Flavor(False, OLDEST[False])


def flavor_of(version: str) -> Flavor:
    """Return what a server is that says this of its version."""
    mariadb = "mariadb" in version.lower()
    number = version.removeprefix("5.5.5-") if mariadb else version  # what an old protocol made MariaDB say
    parts = number.split("-")[0].split(".")
    return Flavor(mariadb, tuple(int(part) for part in parts if part.isdecimal()))


class MysqlNames:
    """The names of a ledger's tables, quoted.

    Args:
        table: the table's name.
        database: its database; None is the connection's.
    """

    def __init__(self, table: str, database: str | None = None) -> None:
        if not table or set(table) - PLAIN or table[0].isdigit() or len(table) > LONGEST:
            raise ValueError(
                f"table={table!r}: give a name of lower-case letters, digits and underscores, at most {LONGEST} long"
            )
        if table.endswith(_TAKEN):
            raise ValueError(f"table={table!r}: another ledger's second table can end with {_TAKEN}")
        place = "" if database is None else f"`{database.replace('`', '``')}`."
        self.plain = table
        self.database = database
        self.table = f"{place}`{table}`"
        self.meta = f"{place}`{table}_meta`"

    def within(self, database: str) -> "MysqlNames":
        """Return the names as a connection with another database uses them."""
        return MysqlNames(self.plain, database)


def tables(names: MysqlNames, flavor: Flavor) -> list[str]:
    """Return the statements that make a ledger. All can be run again, and by several at once."""
    columns = ", ".join(f"`{name}` {kind} COMMENT '{text}'" for name, (kind, text) in _COLUMNS.items())
    indexes = ", ".join(f"INDEX `{names.plain}_{name}` ({column})" for name, column in INDEXES.items())
    form = f"ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE {flavor.collation}"
    return [
        f"CREATE TABLE IF NOT EXISTS {names.table} ({columns}, PRIMARY KEY (`key`), {indexes}) {form}",
        f"CREATE TABLE IF NOT EXISTS {names.meta} (name varchar(50) PRIMARY KEY, value varchar(200) NOT NULL) {form}",
        # The largest fence of all deleted records, for a clock that steps back.
        f"INSERT IGNORE INTO {names.meta} VALUES ('version', '{VERSION}'), ('fence', '0'), ('layout', '{MINOR}')",
    ]


def adding(names: MysqlNames, column: str) -> str:
    """Return the statement that adds a column."""
    return f"ALTER TABLE {names.table} ADD COLUMN `{column}` {ADDED[column]}"


def indexing(names: MysqlNames, index: str) -> str:
    """Return the statement that adds an index."""
    return f"ALTER TABLE {names.table} ADD INDEX `{names.plain}_{index}` ({INDEXES[index]})"


def noting(names: MysqlNames) -> str:
    """Return the statement that notes that all is there which this version adds."""
    return f"UPDATE {names.meta} SET value = '{MINOR}' WHERE name = 'layout' AND CAST(value AS SIGNED) < {MINOR}"


def check(meta: Mapping[str, str], url: str) -> Flavor:
    """Return which server it is.

    Raises:
        StoreError: the server is too old, or the ledger's schema is of another version.
    """
    flavor = flavor_of(meta["server"])
    oldest = OLDEST[flavor.mariadb]
    if flavor.version < oldest:
        name = "MariaDB" if flavor.mariadb else "MySQL"
        wanted = ".".join(map(str, oldest))
        raise StoreError(f"ledger {url}: its server is {meta['server']}, and a ledger needs {name} {wanted} or newer")
    if meta.get("version", str(VERSION)) != str(VERSION):
        raise StoreError(
            f"ledger {url}: its schema is version {meta['version']!r}, and this onceward knows version {VERSION} only. If a "
            "newer onceward made it, upgrade this one; nothing in the ledger was changed"
        )
    return flavor


def is_complete(meta: Mapping[str, str]) -> bool:
    """Return whether the ledger has all that this version adds."""
    layout = meta.get("layout", "")
    return layout.isdecimal() and int(layout) >= MINOR

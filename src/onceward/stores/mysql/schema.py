"""The schema of a MySQL or MariaDB ledger. It changes by adding, so that an earlier version's code works on the same table.

Times are whole microseconds since the epoch, as numbers: no time zone of a session changes them. Texts compare byte by byte, and
their trailing spaces count: a key is never taken for another one.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceward.core.record import COMPLETED
from onceward.errors import StoreError
from onceward.stores.sql.columns import MEANINGS, check_name, check_version

VERSION: Final = 1  # code that does not know it refuses the ledger
MINOR: Final = 1  # counts what was added since; the ledger calls it its layout
ADDED: Final[dict[str, str]] = {}  # columns that a ledger of a lower minor may lack
LONGEST_KEY: Final = 760  # characters of a key: InnoDB's index takes 3072 bytes, and a character has up to 4
_END: Final = "_meta"  # what belongs to a ledger ends with this
OLDEST: Final = {True: (10, 6), False: (8, 0, 17)}  # of MariaDB, of MySQL
# What the records of a chain have in common (core/origin.py). An index of whole origins would be too long.
ROOT: Final = """crc32(substring_index({}, '"parent":"', 1))"""

COLUMNS: Final = {  # types
    "key": f"varchar({LONGEST_KEY}) NOT NULL",
    "status": "varchar(32) NOT NULL",
    "owner": "longtext NOT NULL",
    "fence": "bigint NOT NULL",
    "beat": "bigint NOT NULL",
    "lease_until": "bigint NOT NULL",
    "attempts": "bigint NOT NULL",
    "fingerprint": "longtext",
    "result": "longtext",
    "error": "longtext",
    "created_at": "bigint NOT NULL",
    "expires_at": "bigint",
    "updated_at": "bigint",
    "worker": "longtext",
    "needs": "longtext",
    "steps": "longtext",
    "unsent": "longtext",
    "due_at": "bigint",
    "origin": "longtext",
    "input": "longtext",
    "history": "longtext",
    "trace": "longtext",
    "write_id": "bigint",
    # A NULL means that the other index entries come first: these two replace partial indexes.
    "unfinished": f"tinyint AS (if(status = '{COMPLETED}', NULL, 1)) STORED",
    "root": f"int unsigned AS ({ROOT.format('origin')}) STORED",
}
_MEANINGS: Final = MEANINGS | {
    "write_id": "random number of the last write, by which its writer knows it",
    "unfinished": "1 if the record is not completed",
    "root": "hash of where the chain of messages began",
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
    """The names of a ledger's tables, quoted."""

    def __init__(self, table: str, database: str | None = None) -> None:
        check_name("table", table)
        if table.endswith(_END):
            raise ValueError(f"table={table!r}: choose another end; a ledger's second table can end with {_END}")
        place = "" if database is None else f"`{database.replace('`', '``')}`."
        self.plain = table
        self.database = database
        self.table = f"{place}`{table}`"
        self.meta = f"{place}`{table}_meta`"

    def index(self, name: str) -> str:
        """Return the name of an index, quoted."""
        return f"`{self.plain}_{name}`"

    def hint(self, name: str) -> str:
        """Return what makes the server use an index."""
        return f" FORCE INDEX ({self.index(name)})"

    def within(self, database: str) -> "MysqlNames":
        """Return the names as a connection with another database uses them."""
        return MysqlNames(self.plain, database)


def tables(names: MysqlNames, flavor: Flavor) -> list[str]:
    """Return the statements that make a ledger. All can be run again, and by several at once."""
    unit = {name: ", in microseconds since 1970" for name in COLUMNS if name.endswith(("_at", "_until"))}
    columns = ", ".join(
        f"`{name}` {kind} COMMENT '{_MEANINGS[name]}{unit.get(name, '')}'" for name, kind in COLUMNS.items()
    )
    indexes = ", ".join(f"INDEX {names.index(name)} ({column})" for name, column in INDEXES.items())
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
        version = ".".join(map(str, oldest))
        raise StoreError(f"ledger {url}: its server is {meta['server']}, and a ledger needs {name} {version} or newer")
    check_version(meta, VERSION, url)
    return flavor

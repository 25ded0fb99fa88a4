"""The statements of the verbs.

MariaDB takes all statements of a verb as one block, and an insert returns its rows: each verb is one round trip. MySQL gets them
one by one. A write notes its random ``write_id``, so whoever reads the row sees whose write it is.

An insert is one upsert that changes nothing if the key is there. It waits for whoever holds the row, and returns what is there
then, not what an old snapshot shows. ``INSERT IGNORE`` and then ``SELECT … FOR UPDATE`` would deadlock two claims.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from onceward.core.record import Record, Write
from onceward.stores.mysql.schema import Flavor, MysqlNames
from onceward.stores.sql.columns import FIELDS, TIMES


def literal(value: object) -> str:
    """Return a text, a number or None as SQL.

    Raises:
        ValueError: the text has a surrogate, which no encoding keeps.
    """
    if value is None:
        return "NULL"
    if not isinstance(value, str):
        return repr(value)
    if value.isascii() and "'" not in value and "\\" not in value and "\0" not in value:
        return f"'{value}'"
    return f"_utf8mb4 x'{value.encode().hex()}'"


def microseconds(seconds: float) -> int:
    """Return a time as the ledger keeps it."""
    return round(seconds * 1e6)


# SYSDATE is the time at which it is read, and NOW that at which the statement began: before a wait for a lock. SYSDATE is in
# the time zone of the session. So its distance from NOW is added to the beginning in UTC. A change to summer time in between is
# a multiple of 15 minutes, which is taken out again.
# A condition on an index compares with STARTED, since SYSDATE would keep it from the index. No lock is waited for there.
STARTED: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_WAITED: Final = "TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"
NOW: Final = f"({STARTED} + {_WAITED} - (({_WAITED} + 900450000000) DIV 900000000 - 1000) * 900000000)"
_AT: Final = "@onceward_at"  # the time that a write has given its row
_HIGH: Final = "@onceward_high"  # the largest fence of all deleted records, plus one

_PLACES: Final = {
    name: Write._fields.index(name) for name in FIELDS if name not in TIMES | {"fence"}
}  # as the write has them
OF_T: Final = ", ".join(f"t.`{name}`" for name in FIELDS)


def values_of(write: Write, high: str, fence: int, number: int) -> dict[str, str]:
    """Return what the columns become. Each may name those before it, which the server sets in this order.

    Args:
        write: what to write.
        high: the largest fence of all deleted records, plus one.
        fence: the fence; below 1 it asks for a new one, larger than it without its sign.
        number: the id of the write.
    """
    until = f"`updated_at` + {microseconds(write.lease)}"
    return {
        "updated_at": NOW,
        "fence": str(fence) if fence > 0 else f"GREATEST(`updated_at`, {high}, {1 - fence})",
        # A renewal never shortens a lease.
        "lease_until": f"GREATEST({until}, {microseconds(write.until)})" if write.until else until,
        "created_at": "`updated_at`" if write.created_at is None else str(microseconds(write.created_at)),
        "expires_at": "NULL" if write.keep is None else f"`lease_until` + {microseconds(write.keep)}",
        "due_at": "NULL" if write.due is None else f"`updated_at` + {microseconds(write.due)}",
        **{name: "NULL" if write[at] is None else literal(write[at]) for name, at in _PLACES.items()},
        "write_id": str(number),
    }


def changes(write: Write, seen: Record, values: Mapping[str, str]) -> dict[str, str]:
    """Return the values that differ from those of a record. Its times change."""
    return {
        name: value
        for name, value in values.items()
        if (name in TIMES and (value != "NULL" or getattr(seen, name) is not None))
        or name == "write_id"
        or (name not in TIMES and getattr(write, name) != getattr(seen, name))
    }


def packed(*terms: str) -> str:
    """Return the expression of several values as one text: a driver needs more time for a column than for its value."""
    return f"JSON_ARRAY({', '.join(terms)}) AS packed"  # a short name: it is sent, too


def block(texts: Sequence[str], flavor: Flavor) -> list[str]:
    """Return the statements as they are sent: on MariaDB as one."""
    if flavor.mariadb and len(texts) > 1:
        return [f"BEGIN NOT ATOMIC {'; '.join(texts)}; END"]
    return list(texts)


_RETURNED: Final = packed("`write_id` = {}", NOW, *[f"`{name}`" for name in FIELDS])


class MysqlStatements:
    """The statements on one ledger's tables.

    Args:
        names: of the tables.
        flavor: the server.
        locking: what a SELECT ends with, to see what is committed by then: needed in a transaction, whose snapshot may be older.
    """

    def __init__(self, names: MysqlNames, flavor: Flavor, locking: str = "") -> None:
        self.names = names
        self.flavor = flavor
        self._locking = locking
        high, source = "SELECT CAST(value AS SIGNED) + 1", f"FROM {names.meta} WHERE name = 'fence'"
        # Within a write the row would be locked, for the time of a transaction: a purge would wait for that, and all claims for the
        # purge. On MySQL it would be one round trip more, so there only a transaction reads it first.
        reads_first = flavor.mariadb or locking
        self._first = [f"{high} INTO {_HIGH} {source}"] if reads_first else []
        self._high = _HIGH if reads_first else f"({high} {source})"

    def _impatient(self, text: str, seconds: int) -> str:
        """Return a statement that waits ``seconds`` for a lock. MySQL always waits as the session says."""
        return f"SET STATEMENT innodb_lock_wait_timeout={seconds} FOR {text}" if self.flavor.mariadb else text

    def insert(self, writes: Iterable[tuple[Write, int]], number: int, patience: int) -> list[str]:
        """Insert writes with their fences. Rows: whether the row is this write's, the time after it was written, and the record."""
        records = [values_of(write, self._high, fence, number) for write, fence in writes]
        nulls = set.intersection(*[{name for name, value in values.items() if value == "NULL"} for values in records])
        columns, table = [name for name in records[0] if name not in nulls], self.names.table
        rows = ", ".join([f"({', '.join([values[name] for name in columns])})" for values in records])
        text = f"INSERT INTO {table} (`{'`, `'.join(columns)}`) VALUES {rows} ON DUPLICATE KEY UPDATE `write_id` = {table}.`write_id`"
        if self.flavor.mariadb:
            return [*self._first, self._impatient(f"{text} RETURNING {_RETURNED.format(number)}", patience)]
        return [*self._first, text, self.read([write.key for write, _ in writes], number)]

    def swap(self, write: Write, seen: Record, fence: int, number: int, patience: int) -> list[str]:
        """Write if the record is as seen.

        Rows: how many rows were written, whether the record is this write's, and as :meth:`load`. MariaDB answers one that was
        written and keeps its fence with 1, the time, and the time by which its others are reckoned.
        """
        assignments = changes(write, seen, values_of(write, self._high, fence, number))
        brief = self.flavor.mariadb and fence > 0
        if brief:
            assignments["updated_at"] = f"({_AT} := {assignments['updated_at']})"
        sets = ", ".join([f"`{name}` = {value}" for name, value in assignments.items()])
        text = self._impatient(f"UPDATE {self.names.table} SET {sets} WHERE {_same(seen)}", patience)
        read = self._impatient(self._one(write.key, f"ROW_COUNT(), t.`write_id` = {number}"), patience)
        if brief:
            success = packed("1", NOW, f"CAST({_AT} AS SIGNED)")
            return [text, f"IF ROW_COUNT() = 1 THEN SELECT {success}; ELSE {read}; END IF"]
        return [*([] if fence > 0 else self._first), text, read]

    def swap_many(self, swaps: Sequence[tuple[Write, Record, int]], number: int, patience: int) -> list[str]:
        """Write those whose records are as seen, all or none. Rows: as :meth:`read`."""
        rows = " UNION ALL ".join(f"SELECT {_columns_of(*swap)}" for swap in swaps)
        until = "GREATEST(c.now + b.lease, b.until)"
        assignments = {name: f"b.`{name}`" for name in _PLACES if name != "key"} | {
            "updated_at": "c.now",
            "fence": "IF(b.fence > 0, b.fence, GREATEST(c.now, c.high, 1 - b.fence))",
            "lease_until": until,
            "created_at": "COALESCE(b.created_at, c.now)",
            "expires_at": f"{until} + b.keep",
            "due_at": "c.now + b.due",
            "write_id": str(number),
        }
        order = f"COLLATE {self.flavor.collation}"
        text = (
            f"UPDATE (SELECT {NOW} AS now, {self._high} AS high) c STRAIGHT_JOIN ({rows}) b STRAIGHT_JOIN {self.names.table} t "
            f"ON t.`key` = b.`key` {order} AND t.owner = b.seen_owner {order} AND t.fence = b.seen_fence AND t.beat = b.seen_beat "
            f"SET {', '.join(f't.`{name}` = {value}' for name, value in assignments.items())}"
        )
        read = self.read([write.key for write, *_ in swaps], number)
        return [*self._first, self._impatient(text, patience), read]

    def load(self, key: str, patience: int) -> list[str]:
        """Read one record. Rows: 0, NULL, the time, and the record or NULLs."""
        return [self._impatient(self._one(key, "0, NULL"), patience)]

    def read(self, keys: Sequence[str], number: int) -> str:
        """Read records. Rows: whether each is of the write of this number, the time, the record. The last is without a record."""
        literals = ", ".join(map(literal, keys))
        there, nothing = packed(f"t.`write_id` = {number}", NOW, OF_T), packed("NULL", NOW, *["NULL"] * len(FIELDS))
        return (
            f"(SELECT {there} FROM {self.names.table} t WHERE t.`key` IN ({literals}){self._locking}) "
            f"UNION ALL (SELECT {nothing})"
        )

    def _one(self, key: str, first: str) -> str:
        return (
            f"SELECT {packed(first, NOW, OF_T)} FROM (SELECT 1) one LEFT JOIN {self.names.table} t "
            f"ON t.`key` = {literal(key)}{self._locking}"
        )

    def delete(self, seen: Record, patience: int) -> list[str]:
        """Delete the record if it is as seen. Rows: as :meth:`load`, with how many were deleted in place of 0."""
        statement = self._impatient(f"DELETE FROM {self.names.table} WHERE {_same(seen)}", patience)
        return [self.keep_high(seen.fence), statement, self._one(seen.key, "ROW_COUNT(), NULL")]

    def keep_high(self, fence: int) -> str:
        """Note the fence of a record that is to be deleted, for a clock that steps back. Before, or a crash would forget it."""
        high = f"UPDATE {self.names.meta} SET value = '{fence}' WHERE name = 'fence'"
        return f"{high} AND CAST(value AS SIGNED) < {fence} AND {fence} < {2**53 - 1}"


def _same(seen: Record) -> str:
    owner = literal(seen.owner)
    return f"`key` = {literal(seen.key)} AND owner = {owner} AND fence = {seen.fence} AND beat = {seen.beat}"


def _columns_of(write: Write, seen: Record, fence: int) -> str:
    """Return the columns of one swap among many."""
    numbers = {
        "fence": fence,
        "lease": microseconds(write.lease),
        "until": microseconds(write.until),
        "created_at": None if write.created_at is None else microseconds(write.created_at),
        "keep": None if write.keep is None else microseconds(write.keep),
        "due": None if write.due is None else microseconds(write.due),
        "seen_owner": seen.owner,
        "seen_fence": seen.fence,
        "seen_beat": seen.beat,
    }
    plain = {name: write[at] for name, at in _PLACES.items()}
    return ", ".join([f"{literal(value)} AS `{name}`" for name, value in (plain | numbers).items()])

"""What of a ledger's table is not as this version needs it, for doctor."""

import re
from collections.abc import Iterable, Iterator, Mapping

from onceward.stores.inspection import Finding

_COLUMN = re.compile(r"(?:^|[,(])\s*(\w+) (text|bigint|timestamptz|integer|real)\b", re.IGNORECASE)
_MIGRATE = "let a role that may alter the table run `onceward migrate`, or apply your project's migrations"


def columns_in(statement: str) -> dict[str, str]:
    """Return the columns of a CREATE TABLE statement of ours, with their types in lower case."""
    return {name: kind.lower() for name, kind in _COLUMN.findall(statement)}


def differences(
    wanted: Mapping[str, str], columns: Mapping[str, str], indexes: Iterable[str], there: Iterable[str]
) -> tuple[Finding, ...]:
    """Return a finding for each column and index that is missing, or has another type.

    Args:
        wanted: types by columns, as this version needs them.
        columns: those that are there.
        indexes: names of the indexes that this version needs.
        there: those that are there.
    """
    missing = set(indexes).difference(there)
    return (*_of_columns(wanted, columns), *(_slow(name) for name in sorted(missing)))


def _of_columns(wanted: Mapping[str, str], columns: Mapping[str, str]) -> Iterator[Finding]:
    for name, kind in wanted.items():
        found = columns.get(name)
        if found is None:
            why = "a feature that needs it fails, until a worker that may alter the table has added it"
            yield Finding("warning", "table", f"the ledger's table has no column {name}", why, _MIGRATE)
        elif found != kind:
            why = "another program has made or altered it: writes can fail, or values change"
            fix = f"make it {kind} again"
            yield Finding("error", "table", f"the column {name} is {found}, and not {kind}", why, fix)


def _slow(name: str) -> Finding:
    why = "lists, chains, messages that are due, or the purge read the whole table, or refuse to"
    return Finding("warning", "table", f"the ledger's table has no index {name}", why, _MIGRATE)

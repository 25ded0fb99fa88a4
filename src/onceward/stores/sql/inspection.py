"""Whether the clock of a database server is right, and what of a ledger's table is not as this version needs it, for doctor."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from onceward.core.writes import WAITS
from onceward.stores.inspection import Finding

SOON: Final = WAITS * 0.75  # seconds; what expires later waits for a person
_BEHIND: Final = 0.5  # seconds; hosts with NTP differ by less
_COLUMN = re.compile(r"(?:^|[,(])\s*(\w+) (text|bigint|timestamptz|integer|real)\b", re.IGNORECASE)
_MIGRATE = "let a role that may alter the table run `onceward migrate`, or apply your project's migrations"


def off_by(now: float, sent: float) -> float:
    """Return by how many seconds a server's clock is ahead of this host's, at least; negative if it is behind.

    Args:
        now: the server's time, in an answer that came just now.
        sent: this host's time before the request.
    """
    return now - sent if now < sent else max(0.0, now - time.time())


def clock_findings(off: float, ahead: float | None, others: str) -> Iterator[Finding]:
    """Return what is to say of a server's clock.

    Args:
        off: seconds by which it is ahead of this host's.
        ahead: seconds by which the newest write is ahead of it; None if there is none.
        others: what the server calls the hosts that may become the primary.
    """
    if ahead is not None and ahead > _BEHIND:
        yield Finding(
            "warning",
            "clock",
            f"the server's clock is {ahead:.1f} s behind the newest write to the ledger",
            "leases and records last that much longer, as after a failover to a host whose clock is late",
            "synchronise the clocks of all database hosts",
        )
    elif abs(off) > _BEHIND:
        yield Finding(
            "warning",
            "clock",
            f"the server's clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} this host's",
            "a failover between hosts whose clocks differ shortens or lengthens every lease by as much",
            f"synchronise the clocks of all database hosts, {others} too; or this host's clock is the wrong one",
        )


def columns_in(statement: str) -> dict[str, str]:
    """Return the columns of a CREATE TABLE statement of ours, with their types in lower case."""
    return {name: kind.lower() for name, kind in _COLUMN.findall(statement)}


def differences(
    types: Mapping[str, str], columns: Mapping[str, str], indexes: Iterable[str], there: Iterable[str]
) -> Iterator[Finding]:
    """Yield a finding for each column and index that is missing, or has another type.

    Args:
        types: by columns, as this version needs them.
        columns: those that are there.
        indexes: names of the indexes that this version needs.
        there: those that are there.
    """
    for name, kind in types.items():
        actual = columns.get(name)
        if actual is None:
            why = "a feature that needs it fails, until a worker that may alter the table has added it"
            yield Finding("warning", "table", f"the ledger's table has no column {name}", why, _MIGRATE)
        elif actual != kind:
            why = "another program has made or altered it: writes can fail, or values change"
            fix = f"make it {kind} again"
            yield Finding("error", "table", f"the column {name} is {actual}, and not {kind}", why, fix)
    for name in sorted(set(indexes).difference(there)):
        why = "lists, chains, messages that are due, or the purge read the whole table, or refuse to"
        yield Finding("warning", "table", f"the ledger's table has no index {name}", why, _MIGRATE)

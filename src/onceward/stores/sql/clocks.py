"""Whether the clock of a database server is right, for doctor."""

import time
from collections.abc import Iterator
from typing import Final

from onceward.stores.inspection import Finding

_BEHIND: Final = 0.5  # seconds; hosts with NTP differ by less


def off_by(shown: float, asked: float) -> float:
    """Return by how many seconds a server's clock is ahead of this host's, at least; negative if it is behind.

    Args:
        shown: the server's time, in an answer that came just now.
        asked: this host's time before the request.
    """
    return shown - asked if shown < asked else max(0.0, shown - time.time())


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

"""Whether the clock of a database server is right, for doctor."""

import time
from collections.abc import Iterator
from typing import Final

from onceward.stores.inspection import Finding

_BEHIND: Final = 0.5  # seconds; hosts with NTP differ by less


def off_by(now: float, sent: float) -> float:
    """Return by how many seconds a server's clock is ahead of this host's, at least; negative if it is behind.

    ``now`` is the server's time, in an answer that came just now, and ``sent`` this host's before the request.
    """
    return now - sent if now < sent else max(0.0, now - time.time())


def clock_findings(off: float, others: str) -> Iterator[Finding]:
    """Return what is to say of a server's clock, which is ``off`` seconds ahead of this host's. ``others`` may become the primary."""
    if abs(off) > _BEHIND:
        yield Finding(
            "warning",
            "clock",
            f"the server's clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} this host's",
            "a failover between hosts whose clocks differ shortens or lengthens every lease by as much",
            f"synchronise the clocks of all database hosts, {others} too; or this host's clock is the wrong one",
        )

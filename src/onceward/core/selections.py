"""Which records a store reads, page by page, for people and for those who send messages."""

from typing import NamedTuple

from onceward.core.comparisons import meets
from onceward.core.origin import beginning
from onceward.core.record import Record
from onceward.core.views import ANY, Criteria


class ByKey(NamedTuple):
    """Records by key, status and age, in the store's own order.

    Attributes:
        prefix: what their keys begin with.
        criteria: their status and age.
    """

    prefix: str = ""
    criteria: Criteria = ANY

    def means(self, record: Record, now: float) -> bool:
        """Return whether a record is one of them at the store's time ``now``."""
        return record.key.startswith(self.prefix) and meets(record, self.criteria.clause, now)


class ChainOf(NamedTuple):
    """Records whose chain began at a key, in the store's own order. A store without an index of them raises ``NoIndex``."""

    root: str

    def means(self, record: Record, _: float) -> bool:
        """As :meth:`ByKey.means`."""
        return record.origin is not None and record.origin.startswith(beginning(self.root))


class DueWithin(NamedTuple):
    """Records whose messages are due now or within so many seconds, the longest due first."""

    seconds: float = 0.0

    def means(self, record: Record, now: float) -> bool:
        """As :meth:`ByKey.means`."""
        return record.due_at is not None and record.due_at <= now + self.seconds


Selection = ByKey | ChainOf | DueWithin

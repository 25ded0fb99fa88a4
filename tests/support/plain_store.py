"""A store whose insert takes no record: what is free needs a swap."""

from onceward.core.record import Reply, Write
from onceward.stores.memory import MemoryStore


class TakesNothing(MemoryStore):
    def _insert(self, write: Write) -> Reply:
        return super()._insert(write._replace(taking=None))

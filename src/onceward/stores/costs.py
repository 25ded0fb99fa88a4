"""What a workload asks of a ledger, as each kind of store counts it (:data:`onceward.stores.capabilities.COSTS`)."""

from typing import NamedTuple


class Workload(NamedTuple):
    """Messages a day, and what they are like.

    Attributes:
        messages: deliveries a day, duplicates included.
        duplicates: their share that comes again, from 0 to 1.
        result: bytes of an encoded result.
        key: bytes of a key, with its namespace.
        retention: seconds for which a completed record is kept.
        steps: recorded steps of a handler, each with a result of that size.
        batch: messages handled as one batch.
        remembered: the share of duplicates that come to a process whose ``cache`` knows them.
    """

    messages: float
    duplicates: float = 0.0
    result: int = 100
    key: int = 40
    retention: float = 14 * 86400.0
    steps: int = 0
    batch: int = 10
    remembered: float = 0.5

    @property
    def firsts(self) -> float:
        """Messages a day whose handler runs."""
        return self.messages * (1 - self.duplicates)

    @property
    def again(self) -> float:
        """Duplicates a day."""
        return self.messages * self.duplicates


class Way(NamedTuple):
    """What a workload asks for a day, with one way of using the ledger.

    Attributes:
        name: the way.
        requests: requests, or round trips to a server.
        writes: DynamoDB's write units; 0 elsewhere.
        reads: its read units.
        commits: transactions that a database must make durable; 0 where the store is charged by units.
        stored: bytes that are kept in the long run.
    """

    name: str
    requests: float
    writes: float = 0.0
    reads: float = 0.0
    commits: float = 0.0
    stored: float = 0.0

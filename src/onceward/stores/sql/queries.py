"""A request of a ledger in an SQL server: its statements are the database's own, and so is what it makes of their rows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from onceward.core.record import Reply

Row = Sequence[Any]


class SqlQuery(ABC):
    """A request.

    Attributes:
        action: what it does, for events.
        seconds: for its statements, if they can take longer than the ledger's timeout.
        is_bare: whether it needs no ledger.
        claims: how many keys it asks for.
        kind, key, rank: see :class:`onceward.stores.lanes.line.LaneRequest`.
    """

    __slots__ = ("action",)
    seconds: float | None = None
    is_bare = False
    claims = 0
    kind: str | None = None
    key: str = ""
    rank: int = 1

    @property
    def size(self) -> int:
        """About how many bytes it writes."""
        return 0

    def __init__(self, action: str) -> None:
        self.action = action

    def by(self, conduit: Any) -> Any:
        """Return the connections that run it."""
        return conduit if self.seconds is None else conduit.patient(self.seconds)

    def merged(self, requests: Sequence[Any]) -> "SqlQuery":
        """Return one request for several of a kind, in the order of their keys: so that batches of processes do not deadlock."""
        raise NotImplementedError(self.action)

    @abstractmethod
    def reply(self, rows: Sequence[Row]) -> object:
        """Return the reply that the rows are."""


class Met(NamedTuple):
    """The replies of many keys, and the server's time. A key without a record is missing."""

    replies: dict[str, Reply]
    now: float

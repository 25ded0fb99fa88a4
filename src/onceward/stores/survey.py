"""What a store can tell of all its records at once, however many there are (:data:`onceward.stores.capabilities.SURVEY`)."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceward.core.protocol import STATUSES
from onceward.core.record import COMPLETED

UNFINISHED: Final = STATUSES - {COMPLETED}
READ: Final = 100_000  # records that a survey may count one by one


class Survey(NamedTuple):
    """What a ledger holds. It is made in bounded time, so parts of it can be unknown or estimates.

    Attributes:
        indexed: the statuses whose records are found without reading the others.
        sorted: whether pages are in the order of keys, any key can be an ``after``, and a prefix reads only its own keys.
        counts: how many records are in each state; exact. A state is missing if only reading the ledger would tell.
        total: how many records there are; None if only reading the ledger would tell.
        exact: whether ``total`` is no estimate.
        now: the store's time.
    """

    indexed: frozenset[str]
    sorted: bool
    counts: Mapping[str, int]
    total: int | None
    exact: bool
    now: float


NOTHING: Final = Survey(frozenset(), False, {}, None, False, 0.0)  # of a store without the capability

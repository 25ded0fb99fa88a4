"""The key of the explorer's workers, and the points where a worker, not the ledger, decides what comes next."""

from typing import Final, NamedTuple

KEY: Final = "key"


class Choice(NamedTuple):
    """A point where a worker decides: one of ``options``."""

    options: tuple[str, ...]

"""Prices, from a dated file that users can replace."""

from pathlib import Path
from typing import Final

import msgspec

PACKAGED: Final = Path(__file__).with_name("prices.json")


class StorePrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one kind of store charges. A price that is 0 is not charged.

    Attributes:
        million_writes: a million write units on demand.
        million_reads: a million read units on demand.
        write_unit_hour: a provisioned write unit for an hour.
        read_unit_hour: a provisioned read unit for an hour.
        million_requests: a million requests, where they are charged.
        gb_month: a gigabyte of storage for a month.
    """

    million_writes: float = 0.0
    million_reads: float = 0.0
    write_unit_hour: float = 0.0
    read_unit_hour: float = 0.0
    million_requests: float = 0.0
    gb_month: float = 0.0


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A list of prices: of which day, from where, and for each scheme of a ledger's URL."""

    as_of: str
    source: str
    currency: str
    stores: dict[str, StorePrices]


def prices(path: Path = PACKAGED) -> Prices:
    """Read a list of prices.

    Raises:
        ValueError: it is not one; the message says where.
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Prices)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not a list of prices: {error}") from error

"""What a way of using a ledger costs a month."""

from math import ceil
from typing import Final, Literal, NamedTuple

from onceward.bill.prices import StorePrices
from onceward.stores.costs import Way

DAYS: Final = 365 / 12  # of a month
_HOURS: Final = DAYS * 24
_DAY: Final = 86400
FULL: Final = 0.7  # of provisioned units that the peak may use: autoscaling's usual aim
Mode = Literal["on-demand", "provisioned"]


class Charge(NamedTuple):
    """A way, and what it is charged for a month.

    Attributes:
        way: what is asked for a day.
        requests: requests.
        writes: write units that are used.
        reads: read units that are used.
        units: provisioned write and read units; 0 on demand.
        gb: gigabytes that are stored.
        price: of all of it.
    """

    way: Way
    requests: float
    writes: float
    reads: float
    units: tuple[int, int]
    gb: float
    price: float


def charge(way: Way, of: StorePrices, mode: Mode, peak: float) -> Charge:
    """Return the charge. Provisioned capacity is for the mean rate times ``peak``, at 70 % of the units."""
    writes, reads, gb = way.writes * DAYS, way.reads * DAYS, way.stored / 1e9
    price = gb * of.gb_month + way.requests * DAYS * of.million_requests / 1e6
    units = (0, 0)
    if mode == "provisioned":
        units = (_capacity(way.writes, peak), _capacity(way.reads, peak))
        price += (units[0] * of.write_unit_hour + units[1] * of.read_unit_hour) * _HOURS
    else:
        price += (writes * of.million_writes + reads * of.million_reads) / 1e6
    return Charge(way, way.requests * DAYS, writes, reads, units, gb, price)


def _capacity(units: float, peak: float) -> int:
    return max(1, ceil(round(units / _DAY * peak / FULL, 6)))

"""The columns of a record in SQL. They have the record's names, for people with the database's own shell."""

from functools import reduce
from typing import Final

from onceward.core.protocol import NEEDS, STATUSES
from onceward.core.record import Record

FIELDS: Final = Record._fields
COLUMNS: Final = ", ".join(FIELDS)
VERSION: Final = ("owner", "fence", "beat")  # what a conditional write compares

# A status or a need that this version does not know may mean that the record is still needed.
_STATUSES = ", ".join(f"'{status}'" for status in sorted(STATUSES))
_OTHER_NEEDS = reduce(
    lambda rest, need: f"replace({rest}, ' {need} ', ' ')", sorted(NEEDS), "' ' || coalesce(needs, '') || ' '"
)
KNOWN: Final = f"status IN ({_STATUSES}) AND trim({_OTHER_NEEDS}) = ''"

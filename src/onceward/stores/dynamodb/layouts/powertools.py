"""The table of AWS Lambda Powertools for Python's ``DynamoDBPersistenceLayer``.

What Powertools does with an item (its ``utilities/idempotency/persistence/dynamodb.py`` and ``base.py``, release 3):

- It claims with a put of the whole item, if there is none, or ``expiration`` has passed, or ``status`` is INPROGRESS and
  ``in_progress_expiration`` has passed; an INPROGRESS item without that number is held until ``expiration``.
- It completes with an unconditional update of ``data``, ``expiration`` and ``status``, and leaves other attributes in place.
- When its function raises, it deletes the item, unconditionally.
- It replays any item that is COMPLETED, reads ``data`` as JSON text, and cannot do without ``expiration``.
"""

import math
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED, Record
from onceward.stores.dynamodb.items import Item, Value
from onceward.stores.dynamodb.layouts.beside import Beside, is_plain, seconds, whole
from onceward.stores.dynamodb.layouts.ids import ESCAPE, key_of_text, unquoted

_HASHED = re.compile(r"([^:].*)#([0-9a-f]{32,128})", re.DOTALL).fullmatch  # the shortest is MD5's
_UNFIT: Final = re.compile(r"[%:\s\x00-\x1f\x7f]")  # what a name in the ledger does not have, and our way to write it
_MILLISECOND: Final = 0.001


class Powertools(Beside):
    """A Powertools table: ``id``, ``status``, ``expiration``, ``in_progress_expiration``, ``data``, ``validation``.

    =============================  ==========  ===========================================================
    record                         ``status``  ``in_progress_expiration``
    =============================  ==========  ===========================================================
    IN_PROGRESS                    INPROGRESS  the end of the lease: Powertools may take over then
    RELEASED                       INPROGRESS  0: Powertools may take over at once
    PARKED                         INPROGRESS  the year 9999
    COMPLETED, its result is JSON  COMPLETED   none
    COMPLETED, no such result      INPROGRESS  the record's expiry: what it cannot replay it must not run either
    =============================  ==========  ===========================================================

    ``validation`` is a hash of Powertools' own and is neither compared nor written.

    Args:
        partition: as :class:`Beside`; with ``sort_key_attr``, the static value, as ``id=idempotency#my-function``.
        sort: as :class:`Beside`; ``sort_key_attr``, as ``sk={key}``.
        names: as :class:`Beside`.

    Raises:
        ValueError: as :class:`Beside`.
    """

    means: Mapping[str, str] = {"INPROGRESS": IN_PROGRESS, "COMPLETED": COMPLETED}
    statuses = tuple(means)

    def __init__(
        self, partition: str = "id={key}", sort: str | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(partition, sort, names, ("status", "expiration", "data", "in_progress_expiration"))
        self._lapse = self.theirs["in_progress_expiration"]

    def shown(self, record: Record) -> Item:
        """Return what Powertools is to make of a record."""
        expiry = whole(record.expires_at)
        item: Item = {self.status: {"S": "COMPLETED"}, self.expiry: {"N": str(expiry)}}
        if not is_plain(record):
            held = {IN_PROGRESS: math.ceil(record.lease_until / _MILLISECOND), RELEASED: 0}
            item[self.status] = {"S": "INPROGRESS"}
            item[self._lapse] = {"N": str(held.get(record.status, expiry * 1000))}
        return item

    def lease_of(self, item: Mapping[str, Value]) -> tuple[float, float | None]:
        """Return ``in_progress_expiration`` and ``expiration``, or only the latter."""
        lapse = seconds(item.get(self._lapse), _MILLISECOND)
        return super().lease_of(item) if lapse is None else (lapse, seconds(item.get(self.expiry)))

    def id_of(self, key: str) -> str:
        """Return ``name#hash`` for the key ``name:hash``, and other keys as they are, or behind a colon to tell them apart."""
        name, _, form = key.partition(":")
        text = unquoted(form)  # a hash may be all digits, and is quoted in a key then
        for made in (f"{_raw(name)}#{text}", key):
            if self.key_of(made) == key:
                return made
        return ESCAPE + key

    def key_of(self, text: str) -> str:
        """As :meth:`Beside.key_of`."""
        if match := _HASHED(text):
            return key_of_text(fit(match[1]), match[2])
        return text.removeprefix(ESCAPE)

    def starts(self, prefix: str) -> tuple[str, ...]:
        """As :meth:`Layout.starts`."""
        name = prefix.partition(":")[0].partition("%")[0]
        return (name, ESCAPE + name) if name else ("",)


def fit(name: str) -> str:
    """Write a function's name so that it can be the name of a guard."""
    return _UNFIT.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def _raw(name: str) -> str:
    if "%" not in name:
        return name
    return unquote(name)

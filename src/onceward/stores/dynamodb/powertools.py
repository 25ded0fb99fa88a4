"""The table of AWS Lambda Powertools for Python's ``DynamoDBPersistenceLayer``, and the keys that its decorators make.

What Powertools does with an item (its ``utilities/idempotency/persistence/dynamodb.py`` and ``base.py``, release 3):

- It claims with a put of the whole item, if there is none, or ``expiration`` has passed, or ``status`` is INPROGRESS and
  ``in_progress_expiration`` has passed; an INPROGRESS item without that number is held until ``expiration``.
- It completes with an unconditional update of ``data``, ``expiration`` and ``status``, and leaves other attributes in place.
- When its function raises, it deletes the item, unconditionally.
- It replays any item that is COMPLETED, reads ``data`` as JSON text, and cannot do without ``expiration``.
"""

import math
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED, Record
from onceward.errors import KeyMissing
from onceward.stores.dynamodb.beside import Beside, is_plain, seconds, whole
from onceward.stores.dynamodb.items import Item, Value
from onceward.stores.dynamodb.presets import ESCAPE, key_of_text, unquoted

if TYPE_CHECKING:
    from jmespath import Options

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
            return key_of_text(_fit(match[1]), match[2])
        return text.removeprefix(ESCAPE)

    def starts(self, prefix: str) -> tuple[str, ...]:
        """As :meth:`Layout.starts`."""
        name = prefix.partition(":")[0].partition("%")[0]
        return (name, ESCAPE + name) if name else ("",)


def powertools_name(function: str = "", *, key_prefix: str = "") -> str:
    """Return the ``name=`` of a guard that is to meet the records of a Powertools decorator.

    Args:
        function: module and qualified name of the function that Powertools decorated, as ``app.lambda_handler``; before it
            goes the name of the Lambda function, from AWS_LAMBDA_FUNCTION_NAME, as Powertools does it.
        key_prefix: the decorator's ``key_prefix``, when it has one; then the function's name does not matter.

    Raises:
        ValueError: neither is given, or both.
    """
    if bool(function) == bool(key_prefix):
        raise ValueError("give the function's name, as in powertools_name('app.lambda_handler'), or key_prefix=")
    return _fit(key_prefix or f"{os.environ.get('AWS_LAMBDA_FUNCTION_NAME', 'test-func')}.{function}")


def powertools_key(data: object, event_key_jmespath: str = "", *, hash_function: str = "md5") -> str:
    """Return the hash that Powertools makes of an event, for the ``key=`` of a guard.

    Args:
        data: the event, or what ``data_keyword_argument`` names.
        event_key_jmespath: as in IdempotencyConfig, with the ``powertools_`` functions; "" is all of ``data``.
        hash_function: as in IdempotencyConfig.

    Raises:
        KeyMissing: nothing was found in ``data``; Powertools would run the function unprotected, or raise likewise.
        TypeError: ``data`` has what Powertools cannot write as JSON.
    """
    import hashlib  # noqa: PLC0415 - 3 ms of a cold start
    import json  # noqa: PLC0415 - loaded by whoever opened the table

    found = _prepared(data)
    if event_key_jmespath:
        import jmespath  # noqa: PLC0415 - 10 ms of a cold start

        found = jmespath.search(event_key_jmespath, found, options=_options())
    if _is_missing(found):
        raise KeyMissing(f"no data for a Powertools key ({event_key_jmespath or 'the whole event'}): check the event")
    text = json.dumps(found, default=_written, sort_keys=True)
    return hashlib.new(hash_function, text.encode(), usedforsecurity=False).hexdigest()


def _fit(name: str) -> str:
    """Write a function's name so that it can be the name of a guard."""
    return _UNFIT.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def _raw(name: str) -> str:
    if "%" not in name:
        return name
    from urllib.parse import unquote  # noqa: PLC0415 - rare names only

    return unquote(name)


# --- as Powertools does it ----------------------------------------------------------------------------------------


def _prepared(data: object) -> object:
    """Its base.py, ``_prepare_data``: data classes, models and event source data classes as dicts."""
    if hasattr(data, "__dataclass_fields__"):
        return _as_dict(data)
    for name, options in (("model_dump", {"mode": "json"}), ("dict", {})):
        method = getattr(data, name, None)
        if callable(method):
            return method(**options)
    return getattr(data, "raw_event", data)


def _is_missing(data: object) -> bool:
    """Its persistence/base.py, ``is_missing_idempotency_key``."""
    if isinstance(data, dict):
        return all(part is None for part in data.values())
    if isinstance(data, tuple | list):
        return all(part is None for part in data)
    return not isinstance(data, int | float) and not data


def _written(value: object) -> object:
    """Its shared/json_encoder.py and persistence/base.py, ``_IdempotencyKeyEncoder``: what JSON has no type for."""
    import datetime as dt  # noqa: PLC0415 - rare keys only
    import decimal  # noqa: PLC0415 - as above
    from enum import Enum  # noqa: PLC0415 - as above
    from pathlib import PurePath  # noqa: PLC0415 - as above
    from uuid import UUID  # noqa: PLC0415 - as above

    if isinstance(value, decimal.Decimal):
        return math.nan if value.is_nan() else str(value)
    if getattr(value, "model_dump", None):
        return value.model_dump(mode="json")  # type: ignore[attr-defined]  # a pydantic model
    if hasattr(value, "__dataclass_fields__"):
        return _as_dict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, UUID | PurePath):
        return str(value)
    raise TypeError(f"{type(value).__qualname__} is nothing that Powertools makes keys of")


def _as_dict(value: object) -> object:
    from dataclasses import asdict  # noqa: PLC0415 - loaded by whoever made the class

    return asdict(value)  # type: ignore[call-overload]  # the callers have looked


@cache
def _options() -> "Options":
    """Its jmespath_utils: the three functions for JMESPath expressions."""
    import base64  # noqa: PLC0415 - rare keys only
    import gzip  # noqa: PLC0415 - as above
    import json  # noqa: PLC0415 - as above

    from jmespath import Options  # noqa: PLC0415 - loaded by the caller
    from jmespath.functions import Functions, signature  # noqa: PLC0415 - as above

    class PowertoolsFunctions(Functions):
        @signature({"types": ["string"]})
        def _func_powertools_json(self, value: str) -> object:
            return json.loads(value)

        @signature({"types": ["string"]})
        def _func_powertools_base64(self, value: str) -> str:
            return base64.b64decode(value).decode()

        @signature({"types": ["string"]})
        def _func_powertools_base64_gzip(self, value: str) -> str:
            return gzip.decompress(base64.b64decode(value)).decode()

    return Options(custom_functions=PowertoolsFunctions())

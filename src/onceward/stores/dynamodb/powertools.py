"""A table of AWS Lambda Powertools for Python: its keys, and its items as records (``preset=powertools``).

Our records have attributes of their own in that table, and only the TTL's is shared. An item without our ``owner`` is
Powertools'. It is read as a record, and a write over it is made only while its status and times are those seen. Powertools
does not read our records: without its ``status`` they are an error for it, and it replaces none before its expiry.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

import jmespath
from jmespath import Options
from jmespath.functions import Functions, signature

from onceward.core.record import COMPLETED, IN_PROGRESS, Record
from onceward.errors import KeyMissing
from onceward.keys.ledger_keys import ledger_key
from onceward.stores.dynamodb.items import NULL, Item, Layout, Value, check_apart

_STATUSES: Final = {"INPROGRESS": IN_PROGRESS, "COMPLETED": COMPLETED}
_WORDS: Final = {status: word for word, status in _STATUSES.items()}
_OWNER: Final = "powertools"  # of their records; ours have random ones
_ATTRIBUTES: Final = ("status", "expiration", "data", "in_progress_expiration")
_HASHED = re.compile(r"(.+)#([0-9a-f]{32,128})", re.DOTALL).fullmatch  # the shortest is MD5's
_UNFIT: Final = re.compile(r"[%:\s\x00-\x1f\x7f]")  # what no name in the ledger has, and our sign for it


class Powertools(Layout):
    """The table of ``DynamoDBPersistenceLayer`` (release 3, ``utilities/idempotency/persistence/dynamodb.py``).

    A key ``name:hash`` has the id ``name#hash``, as Powertools makes it. ``partition`` and ``sort`` are as for :class:`Layout`. For
    Powertools' ``sort_key_attr``, ``partition`` is the static value, as in ``id=idempotency#my-function``, and ``sort`` is
    ``sk={key}``. ``names`` renames Powertools' attributes: status, expiration, data and in_progress_expiration.

    Raises:
        ValueError: as :class:`Layout`.
    """

    shared = True

    def __init__(
        self, partition: str = "id={key}", sort: str | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        attributes = names or {}
        if unknown := attributes.keys() - set(_ATTRIBUTES):
            raise ValueError(
                f"names: unknown attribute {', '.join(sorted(unknown))}; there are {', '.join(_ATTRIBUTES)}"
            )
        self._word, expiry, self._data, self._lapse = (attributes.get(name, name) for name in _ATTRIBUTES)
        super().__init__(partition, sort, {"status": "onceward_status", "expires_at": expiry})
        self.attributes += (self._word, self._data, self._lapse)
        check_apart([*(part.name for part in self.parts), *self.attributes])
        self.marks = ()

    def key(self, key: str) -> Item:
        name, _, form = key.partition(":")
        text = unquote(name) + "#" + form.strip('"')  # a hash of digits only is quoted in a key
        return super().key(text if _key_of(text) == key else key)

    def key_in(self, item: Mapping[str, Value]) -> str:
        return _key_of(super().key_in(item))

    def version_of(self, seen: Record) -> dict[str, Value | None]:
        if seen.owner != _OWNER:
            return super().version_of(seen)
        expiry = {"N": str(int(seen.expires_at or seen.lease_until))}
        was: dict[str, Value | None] = {
            self.names["owner"]: None,
            self._word: {"S": _WORDS[seen.status]},
            self.expiry: expiry,
        }
        if seen.status == IN_PROGRESS and seen.expires_at is not None:
            was[self._lapse] = {"N": str(round(seen.lease_until * 1000))}
        return was

    def item(self, record: Record, seen: Record | None = None) -> Item:
        if seen is None or seen.owner != _OWNER:
            return super().item(record, seen)
        item = super().item(record)
        return {name: item.get(name, NULL) for name in self.attributes}

    def record(self, item: Mapping[str, Mapping[str, Any]]) -> Record:
        if self.names["owner"] in item:
            return super().record(item)._replace(key=self.key_in(item))
        expires = float(item[self.expiry]["N"])
        status = _STATUSES[item[self._word]["S"]]
        lapse = item.get(self._lapse) if status == IN_PROGRESS else None
        until = expires if lapse is None else float(lapse["N"]) / 1000
        return Record(
            key=self.key_in(item),
            status=status,
            owner=_OWNER,
            fence=int(until * 1e6),  # that time has passed when the record is taken, so ours are larger
            beat=0,
            lease_until=until,
            attempts=1,
            fingerprint=None,
            result=item.get(self._data, {}).get("S"),
            error=None,
            created_at=until,  # their items have no time of creation
            expires_at=None if lapse is None and status == IN_PROGRESS else expires,
        )


def _key_of(text: str) -> str:
    match = _HASHED(text)
    return ledger_key(_fit(match[1]), match[2]) if match else text


def _fit(name: str) -> str:
    """Return a function's name in a form that a guard's name can have."""
    return _UNFIT.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def powertools_name(function: str = "", *, key_prefix: str = "") -> str:
    """Return the ``name=`` of a guard that goes on with the records of a Powertools decorator.

    Args:
        function: the module and qualified name of the function that Powertools decorated, as in ``app.lambda_handler``. The
            name of the Lambda function (AWS_LAMBDA_FUNCTION_NAME) is put before it, as Powertools does.
        key_prefix: the decorator's ``key_prefix``, if it has one. It replaces the function's name.

    Raises:
        ValueError: neither is given, or both.
    """
    if bool(function) == bool(key_prefix):
        raise ValueError("give the function's name, as in powertools_name('app.lambda_handler'), or key_prefix=")
    return _fit(key_prefix or f"{os.environ.get('AWS_LAMBDA_FUNCTION_NAME', 'test-func')}.{function}")


def powertools_key(data: object, event_key_jmespath: str = "", *, hash_function: str = "md5") -> str:
    """Return the hash that Powertools makes of an event, for the ``key=`` of a guard.

    Args:
        data: the event, or what ``data_keyword_argument`` names, as JSON values: of a model ``model_dump(mode="json")``, of
            a data class ``asdict``, of a Powertools event its ``raw_event``.
        event_key_jmespath: as in IdempotencyConfig, with ``powertools_json`` and ``powertools_base64``; "" is all of ``data``.
        hash_function: as in IdempotencyConfig.

    Raises:
        KeyMissing: nothing was found in ``data`` (Powertools would raise, or run the function unprotected).
        TypeError: ``data`` has a value that is not JSON's.
    """
    value = jmespath.search(event_key_jmespath, data, options=_options()) if event_key_jmespath else data
    if isinstance(value, dict | tuple | list):  # as its persistence/base.py, is_missing_idempotency_key
        parts = value.values() if isinstance(value, dict) else value
        missing = all(part is None for part in parts)
    else:
        missing = not isinstance(value, int | float) and not value
    if missing:
        raise KeyMissing(f"no data for a Powertools key ({event_key_jmespath or 'the whole event'}): check the event")
    return hashlib.new(hash_function, json.dumps(value, sort_keys=True).encode(), usedforsecurity=False).hexdigest()


@cache
def _options() -> "Options":
    class PowertoolsFunctions(Functions):
        @signature({"types": ["string"]})
        def _func_powertools_json(self, value: str) -> object:
            return json.loads(value)

        @signature({"types": ["string"]})
        def _func_powertools_base64(self, value: str) -> str:
            return base64.b64decode(value).decode()

    return Options(custom_functions=PowertoolsFunctions())

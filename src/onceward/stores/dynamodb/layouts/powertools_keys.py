"""Makes the names and keys of AWS Lambda Powertools for Python, for guards that share its records."""

import base64
import datetime as dt
import decimal
import gzip
import hashlib
import io
import json
import math
import os
from dataclasses import asdict
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

import jmespath
from jmespath import Options
from jmespath.functions import Functions, signature

from onceward.errors import KeyMissing
from onceward.stores.dynamodb.layouts import fit

LARGEST: Final = 64 * 1024 * 1024  # bytes of compressed data in an event once decompressed; Powertools has no limit


def powertools_name(function: str = "", *, key_prefix: str = "") -> str:
    """Return the ``name=`` of a guard that shares the records of a Powertools decorator.

    Args:
        function: the module and qualified name of the function that Powertools decorated, as in ``app.lambda_handler``. The
            name of the Lambda function (AWS_LAMBDA_FUNCTION_NAME) is put before it, as Powertools does.
        key_prefix: the decorator's ``key_prefix``, if it has one. It replaces the function's name.

    Raises:
        ValueError: neither is given, or both.
    """
    if bool(function) == bool(key_prefix):
        raise ValueError("give the function's name, as in powertools_name('app.lambda_handler'), or key_prefix=")
    return fit(key_prefix or f"{os.environ.get('AWS_LAMBDA_FUNCTION_NAME', 'test-func')}.{function}")


def powertools_key(data: object, event_key_jmespath: str = "", *, hash_function: str = "md5") -> str:
    """Return the hash that Powertools makes of an event, for the ``key=`` of a guard.

    Args:
        data: the event, or what ``data_keyword_argument`` names.
        event_key_jmespath: as in IdempotencyConfig, with the ``powertools_`` functions; "" is all of ``data``.
        hash_function: as in IdempotencyConfig.

    Raises:
        KeyMissing: nothing was found in ``data`` (Powertools would raise, or run the function unprotected); or compressed
            data takes more than 64 MiB.
        TypeError: ``data`` has a value that Powertools cannot write as JSON.
    """
    found = _prepared(data)
    if event_key_jmespath:
        found = jmespath.search(event_key_jmespath, found, options=_options())
    if _is_missing(found):
        raise KeyMissing(f"no data for a Powertools key ({event_key_jmespath or 'the whole event'}): check the event")
    text = json.dumps(found, default=_written, sort_keys=True)
    return hashlib.new(hash_function, text.encode(), usedforsecurity=False).hexdigest()


# --- as Powertools does it ----------------------------------------------------------------------------------------


def _prepared(data: Any) -> object:
    """Its base.py, ``_prepare_data``: data classes, models and event source data classes as dicts."""
    if hasattr(data, "__dataclass_fields__"):
        return asdict(data)
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


def _written(value: Any) -> object:
    """Its shared/json_encoder.py and persistence/base.py, ``_IdempotencyKeyEncoder``: what JSON has no type for."""
    if isinstance(value, decimal.Decimal):
        return math.nan if value.is_nan() else str(value)
    if getattr(value, "model_dump", None):
        return value.model_dump(mode="json")
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, UUID | PurePath):
        return str(value)
    raise TypeError(f"{type(value).__qualname__} is not a type that Powertools makes keys of")


@cache
def _options() -> "Options":
    """Its jmespath_utils: the three functions for JMESPath expressions."""

    class PowertoolsFunctions(Functions):
        @signature({"types": ["string"]})
        def _func_powertools_json(self, value: str) -> object:
            return json.loads(value)

        @signature({"types": ["string"]})
        def _func_powertools_base64(self, value: str) -> str:
            return base64.b64decode(value).decode()

        @signature({"types": ["string"]})
        def _func_powertools_base64_gzip(self, value: str) -> str:
            with gzip.GzipFile(fileobj=io.BytesIO(base64.b64decode(value))) as file:
                data = file.read(LARGEST + 1)
            if len(data) > LARGEST:
                raise KeyMissing(
                    f"powertools_base64_gzip(): the data takes more than {LARGEST} bytes when it is decompressed, which no event "
                    "of AWS does. Take the key from another field"
                )
            return data.decode()

    return Options(custom_functions=PowertoolsFunctions())

"""Values to JSON's own types and back, with a tag around all that JSON would change.

The text in a ledger never imports or calls anything. A tag names a class, which must already be loaded, and be a dataclass,
Struct, Enum, NamedTuple or pydantic model; see classes.py.
"""

import datetime as dt
import decimal
import math
import uuid
from collections.abc import Callable
from enum import Enum
from json import dumps, loads
from typing import Any, cast

import msgspec

from onceward.results.classes import (
    KINDS,
    NotReplayable,
    field_names,
    importable_name,
    is_model,
    is_named_tuple,
    loaded_class,
    own_name,
)

_INT64 = 1 << 63
_MOST_BITS = 10_000  # Python writes an int in decimal up to 4300 digits (sys.set_int_max_str_digits)


def canonical(value: object) -> bytes:
    """Return bytes that are equal for equal values of equal types, in any order of their dicts and sets.

    Raises:
        TypeError: the value is of a type that cannot be compared this way, or contains itself.
    """
    try:
        marked = tagged(value)
        data = msgspec.json.encode(marked, order="deterministic")
        if b'"$dict"' not in data and b'"$pydantic"' not in data:
            return data
        return msgspec.json.encode(_ordered(marked), order="deterministic")
    except NotReplayable as error:
        raise TypeError(f"no fingerprint can be taken: {error}") from error
    except RecursionError:
        raise TypeError("no fingerprint can be taken: the input is nested too deeply, or contains itself") from None


def _ordered(marked: object) -> object:
    """Sort the pairs of dicts whose keys are not all str; the encoder orders the others.

    Leave out which fields of a model were given: models that differ only in that count as the same input.
    """
    if type(marked) is list:
        return [_ordered(item) for item in marked]
    if type(marked) is not dict:
        return marked
    if "$dict" in marked:
        return {"$dict": sorted((_ordered(pair) for pair in marked["$dict"]), key=_sorting)}
    return {key: _ordered(item) for key, item in marked.items() if key != "set" or "$pydantic" not in marked}


def _sorting(marked: object) -> bytes:
    return msgspec.json.encode(marked, order="deterministic")


def is_plain(value: Any) -> bool:
    """Return whether JSON gives ``value`` back as it is, without a tag."""
    kind = type(value)
    if kind is str:
        return value.isascii() or _is_text(value)
    if kind is dict:
        for key in value:
            if type(key) is not str or key.startswith("$") or not (key.isascii() or _is_text(key)):
                return False
        return all(map(is_plain, value.values()))
    if kind is list:
        return all(map(is_plain, value))
    if kind is int:
        return bool(-_INT64 <= value < _INT64)
    return value is None or kind is bool or (kind is float and math.isfinite(value))


def tagged(value: Any) -> object:
    """Return ``value`` in JSON's own types, tagged where JSON would change it."""
    kind = type(value)
    if kind is str:
        return value if _is_text(value) else {"$str": dumps(value)}
    if kind is bool or value is None:
        return value
    if kind is int:
        return (
            value
            if -_INT64 <= value < _INT64
            else {"$int": str(value) if value.bit_length() < _MOST_BITS else hex(value)}
        )
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [tagged(item) for item in value]
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") and _is_text(key) for key in value):
            return {key: tagged(item) for key, item in value.items()}
        return {"$dict": [[tagged(key), tagged(item)] for key, item in value.items()]}
    writer = _WRITERS.get(kind)
    if writer is not None:
        return {writer[0]: writer[1](value)}
    return _tagged_object(value)


def findable(marked: object) -> object:
    """Return what ``tagged`` made, with names that find a script's classes again.

    Fingerprints do not use this: those names change when somebody imports the script.
    """
    if type(marked) is list:
        return [findable(item) for item in marked]
    if type(marked) is not dict:
        return marked
    return {key: importable_name(item) if key in KINDS else findable(item) for key, item in marked.items()}


def _tagged_object(value: Any) -> object:
    kind = type(value)
    if isinstance(value, Enum):
        return {"$enum": own_name(kind), "name": value.name}
    if is_named_tuple(kind):
        return {"$namedtuple": own_name(kind), "items": [tagged(item) for item in value]}
    if is_model(kind):
        return _tagged_model(value, kind)
    names = field_names(kind)
    if names is None:
        raise NotReplayable(f"{kind.__module__}.{kind.__qualname__} is not a type that can be stored")
    parts = {name: getattr(value, name) for name in names}
    return {
        "$object": own_name(kind),
        "fields": {name: tagged(item) for name, item in parts.items() if item is not msgspec.UNSET},
    }


def _tagged_model(value: Any, kind: Any) -> object:
    fields = {name: item for name, item in value.__dict__.items() if name in kind.model_fields}
    fields |= value.__pydantic_extra__ or {}
    marked = {"$pydantic": own_name(kind), "value": tagged(fields)}
    names_set: set[str] = value.__pydantic_fields_set__
    return marked if names_set == fields.keys() else {**marked, "set": sorted(names_set)}


def untagged(value: Any) -> object:
    """Return the value that ``tagged`` had; raises NotReplayable, or what a class's constructor raises."""
    if type(value) is list:
        return [untagged(item) for item in value]
    if type(value) is not dict:
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: untagged(item) for key, item in value.items()}
    reader = _READERS.get(tag)
    if reader is not None:
        return reader(value[tag])
    return _untagged_object(tag, value)


def _untagged_object(tag: str, value: dict[str, object]) -> object:
    kind: Any = loaded_class(str(value[tag]), tag)
    if tag == "$enum":
        return kind._member_map_[str(value["name"])]
    if tag == "$namedtuple":
        items, names = cast("list[object]", untagged(value["items"])), kind._fields
        if len(items) > len(names):
            raise NotReplayable(f"{kind.__qualname__} has fewer fields now than the recorded result")
        since = [kind._field_defaults[name] for name in names[len(items) :]]
        return tuple.__new__(kind, (*items, *since))
    if tag == "$pydantic":
        # Without validation: it was valid before, and validators may have effects or need aliases.
        fields = cast("dict[str, object]", untagged(value["value"]))
        return kind.model_construct(_fields_set=set(cast("list[str]", value.get("set", fields))), **fields)
    fields = cast("dict[str, object]", untagged(value["fields"]))
    if issubclass(kind, msgspec.Struct):
        return kind(**fields)
    instance = object.__new__(kind)  # without its __new__ and __init__, which may take other arguments or have effects
    for name in field_names(kind) or ():
        object.__setattr__(instance, name, fields[name] if name in fields else _default(kind, name))
    return instance


def _default(kind: type, name: str) -> object:
    """Return the default of a field that was added to a dataclass after an object was stored."""
    from dataclasses import MISSING, fields

    field = next(field for field in fields(kind) if field.name == name)
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    raise NotReplayable(f"{kind.__qualname__} has had a field {name!r} since, which the recorded result lacks")


def model_data(value: Any) -> object:
    """Return a pydantic model's data for JSON, as msgspec's ``enc_hook``; raises TypeError for anything else."""
    if is_model(type(value)):
        data: object = value.model_dump(mode="json", by_alias=True)
        return data
    raise TypeError(f"{type(value).__qualname__} cannot be written as JSON")


def _sorted(items: "set[object] | frozenset[object]") -> list[object]:
    return sorted((tagged(item) for item in items), key=_sorting)


def _is_text(text: str) -> bool:
    """Return whether a str can be written as UTF-8, which cannot have lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes_text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("ascii")}
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def _bytes_of(stored: dict[str, str]) -> bytes:
    return stored["text"].encode("ascii") if "text" in stored else bytes.fromhex(stored["hex"])


def time_text(moment: dt.datetime | dt.time) -> object:
    """Return a time in JSON's own types, with the name of a zoneinfo time zone, which an offset alone would lose."""
    zone: str | None = getattr(moment.tzinfo, "key", None)
    if zone is None and not moment.fold:
        return moment.isoformat()
    plain = moment.replace(tzinfo=None) if zone else moment
    return [plain.isoformat(), zone, moment.fold]


def _time_of(kind: type[dt.datetime] | type[dt.time], stored: object) -> dt.datetime | dt.time:
    if isinstance(stored, str):
        return kind.fromisoformat(stored)
    text, zone, fold = cast("tuple[str, str | None, int]", stored)
    moment = kind.fromisoformat(text).replace(fold=fold)
    if zone is None:
        return moment
    import zoneinfo

    return moment.replace(tzinfo=zoneinfo.ZoneInfo(zone))


_WRITERS: dict[type, tuple[str, Callable[[Any], object]]] = {
    tuple: ("$tuple", lambda v: [tagged(item) for item in v]),
    set: ("$set", _sorted),
    frozenset: ("$frozenset", _sorted),
    bytes: ("$bytes", _bytes_text),
    bytearray: ("$bytearray", lambda v: _bytes_text(bytes(v))),
    complex: ("$complex", repr),
    uuid.UUID: ("$uuid", str),
    decimal.Decimal: ("$decimal", str),
    dt.datetime: ("$datetime", time_text),
    dt.date: ("$date", dt.date.isoformat),
    dt.time: ("$time", time_text),
    dt.timedelta: ("$timedelta", lambda v: [v.days, v.seconds, v.microseconds]),
}

_READERS: dict[str, Callable[[Any], object]] = {
    "$str": loads,
    "$int": lambda v: int(v, 0),
    "$float": float,
    "$dict": lambda v: {untagged(key): untagged(item) for key, item in v},
    "$tuple": lambda v: tuple(untagged(item) for item in v),
    "$set": lambda v: {untagged(item) for item in v},
    "$frozenset": lambda v: frozenset(untagged(item) for item in v),
    "$bytes": _bytes_of,
    "$bytearray": lambda v: bytearray(_bytes_of(v)),
    "$complex": complex,
    "$uuid": uuid.UUID,
    "$decimal": decimal.Decimal,
    "$datetime": lambda v: _time_of(dt.datetime, v),
    "$date": dt.date.fromisoformat,
    "$time": lambda v: _time_of(dt.time, v),
    "$timedelta": lambda v: dt.timedelta(*v),
}

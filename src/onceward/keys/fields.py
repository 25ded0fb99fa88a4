"""What a path reads of a dict, a dataclass, a Struct of msgspec, and a model of attrs or pydantic: a field as it is.

What writes a model as JSON may mask a field or leave it out, so that two inputs would look the same.
"""

import datetime as dt
import decimal
import uuid
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from onceward.errors import KeyMissing

_BUILTIN = (dict, list, str, int, float, bool, type(None))
_OWN = (uuid.UUID, bytes, bytearray, decimal.Decimal, dt.datetime, dt.date)  # types that keys and fingerprints know


def field_of(value: Any, name: str) -> object:
    """Return a field of a value, or None; raises KeyMissing for a value in which it is never found."""
    kind = type(value)
    if kind is dict:
        return cast("object", value.get(name))
    if _is_root(kind):
        return field_of(value.root, name)
    if (names := _names_of(value)) is not None:
        part = _part(value, name) if name in names else None
        return None if part is msgspec.UNSET else part
    get = getattr(value, "get", None)
    if get is None and not isinstance(value, _BUILTIN):  # null for every input
        raise KeyMissing(
            f"a path cannot read {name!r} from an object of type {kind.__name__}. In a tuple, "
            "write the place, as in order.total[0]; else give a callable"
        )
    return cast("object", get(name)) if get is not None else None


def opened(value: Any) -> object:
    """Return a model as a dict of its fields, and a tuple or a model that is written as a list as a list; another value as it is."""
    kind = type(value)
    if kind in _BUILTIN:
        return value
    if isinstance(value, tuple):
        return list(value)
    if _is_root(kind):
        return opened(value.root)
    if (names := _names_of(value)) is None:
        return value
    if getattr(getattr(kind, "__struct_config__", None), "array_like", False):
        return [_part(value, name) for name in names]
    return {name: part for name in names if (part := _part(value, name)) is not msgspec.UNSET}


def plain(value: object) -> object:
    """Return a value whose models, at any depth, are dicts."""
    kind = type(value)
    if kind is dict:
        return {name: plain(part) for name, part in cast("dict[object, object]", value).items()}
    if kind is list or kind is tuple:
        return kind(map(plain, cast("list[object]", value)))
    if kind in _BUILTIN or isinstance(value, tuple):
        return value
    shown = opened(value)
    return value if shown is value else plain(shown)


def _is_root(kind: type) -> bool:
    return getattr(kind, "__pydantic_root_model__", False) is True


def _names_of(value: Any) -> Sequence[str] | None:
    """Return the names of a model's fields; None for another value."""
    kind: Any = type(value)
    if hasattr(kind, "__struct_fields__"):  # msgspec's
        tag = kind.__struct_config__.tag_field
        return kind.__struct_encode_fields__ if tag is None else (tag, *kind.__struct_encode_fields__)
    if hasattr(kind, "model_fields"):  # pydantic's
        return (*kind.model_fields, *kind.model_computed_fields, *(value.model_extra or ()))
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses  # the model's module has loaded it

        return [one.name for one in dataclasses.fields(kind)]
    return [one.name for one in kind.__attrs_attrs__] if hasattr(kind, "__attrs_attrs__") else None


def _part(value: Any, name: str) -> object:
    """Return a field of a model. One of pydantic's is as it is; in others a member of an Enum counts as its value."""
    kind: Any = type(value)
    if hasattr(kind, "model_fields"):
        for part in (
            value.model_extra or {},
            vars(value),
        ):  # not by its attribute, which may be deprecated, or a method
            if name in part:
                return part[name]
        return cast("object", getattr(value, name, None))
    if hasattr(kind, "__struct_fields__"):
        if name == kind.__struct_config__.tag_field:
            return kind.__struct_config__.tag
        name = kind.__struct_fields__[kind.__struct_encode_fields__.index(name)]
    return _leaf(getattr(value, name, None))


def _leaf(value: Any) -> object:
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(_leaf, value))
    if kind is dict:
        return {_leaf(name): _leaf(part) for name, part in value.items()}
    if kind in _BUILTIN or isinstance(value, set | frozenset) or _is_root(kind) or _names_of(value) is not None:
        return value  # a set has no order that another process would know
    try:
        return msgspec.to_builtins(value, builtin_types=_OWN)
    except TypeError:  # msgspec does not know it: a path reads nothing from it
        return value

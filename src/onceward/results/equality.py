"""Compares a value read back from the ledger with the original, part by part."""

import datetime as dt
import decimal
from types import MemberDescriptorType
from typing import Any

from onceward.results.classes import field_names, is_model
from onceward.results.values import canonical, time_text

_PLAIN = frozenset({str, int, bool, type(None), bytes})


def same(one: Any, other: Any) -> bool:
    """Compare two values part by part: 1, 1.0 and True are not the same. Raises what a user's ``__eq__`` raises."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in _PLAIN:
        return bool(one == other)
    if kind in {float, complex, decimal.Decimal}:
        return repr(one) == repr(other)  # NaN equals itself, and -0.0 is not 0.0
    if kind in {list, tuple}:
        return len(one) == len(other) and all(map(same, one, other))
    if kind is dict:
        return len(one) == len(other) and all(map(same, one.items(), other.items()))
    if kind in {set, frozenset}:
        return len(one) == len(other) and all(map(same, sorted(one, key=canonical), sorted(other, key=canonical)))
    if kind in {dt.datetime, dt.time}:
        return time_text(one) == time_text(other) and (one.tzinfo is None) is (other.tzinfo is None)
    return _alike_object(one, other)


def _alike_object(one: Any, other: Any) -> bool:
    kind = type(one)
    if isinstance(one, tuple):
        return same(tuple(one), tuple(other)) and _alike_attributes(one, other)
    if is_model(kind):
        if one.__pydantic_fields_set__ != other.__pydantic_fields_set__:
            return False
        parts = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
        return all(_alike_state(getattr(one, name), getattr(other, name), kind) for name in parts)
    names = field_names(kind)
    if names is None:
        return bool(one == other)
    if not all(same(getattr(one, name), getattr(other, name)) for name in names):
        return False
    return _alike_attributes(one, other)


def _alike_attributes(one: object, other: object) -> bool:
    """Compare the attributes of two objects besides their fields."""
    for base in type(one).__mro__:
        if "__slots__" in base.__dict__:
            slots = [name for name, slot in base.__dict__.items() if type(slot) is MemberDescriptorType]
            if not all(same(getattr(one, name, None), getattr(other, name, None)) for name in slots):
                return False
    return _alike_state(getattr(one, "__dict__", None), getattr(other, "__dict__", None), type(one))


def _alike_state(one: dict[str, object] | None, other: dict[str, object] | None, kind: type) -> bool:
    """Compare attributes. One that the class can make again, such as a cached_property, may be missing."""
    one, other = one or {}, other or {}
    differing = {name for name in one.keys() ^ other.keys() if not hasattr(getattr(kind, name, None), "__get__")}
    return not differing and all(same(one[name], other[name]) for name in one.keys() & other.keys())

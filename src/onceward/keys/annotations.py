"""Warns of an argument whose type is not its annotation's, where its key differs with the type: a UUID and its text are two keys."""

import typing
import warnings
from collections.abc import Callable, Mapping
from enum import Enum
from types import UnionType

from onceward.keys.ledger_keys import form_of

_WRITTEN_AS_TEXT = {
    ("uuid", "UUID"),
    ("decimal", "Decimal"),
    ("datetime", "date"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
}


class Annotations:
    """Compares what keys are made of with the annotations of a function, and warns once.

    Args:
        function: its annotations are read at the first call, because they can name what is defined later.
        key: its key. A callable, or a path with a function such as ``to_string``, chooses the type by itself and is not checked.
        chain: the names in the path of its key, if that is a plain one such as ``order.id``; else empty.
    """

    def __init__(self, function: Callable[..., object], key: object, chain: tuple[str, ...]) -> None:
        self._function, self._chain = function, chain
        is_plain = isinstance(key, str) and "(" not in key
        # By parameter; a chain's under the whole path. None: not read yet.
        self.forms: dict[str, frozenset[object]] | None = None if is_plain else {}

    def check(self, key: object, named: Mapping[str, object]) -> None:
        """Warn if the key, or a part of it, is an argument of another type than it is annotated with."""
        forms = self._read() if self.forms is None else self.forms
        if not forms:
            return
        if self._chain:
            self._compare(".".join(self._chain), key)
            return
        parts = (key, *key) if isinstance(key, tuple | list) else (key,)
        for name in forms:
            if any(part is named.get(name) for part in parts):
                self._compare(name, named[name])

    def _compare(self, name: str, value: object) -> None:
        assert self.forms is not None
        wanted = self.forms.get(name)
        if not wanted or value is None or form_of(type(value)) in wanted:
            return
        self.forms = {}  # once is enough
        shown = getattr(self._function, "__qualname__", repr(self._function))
        warnings.warn(
            f"{shown}: {name} is annotated with another type than the {type(value).__name__} that it got. The key has "
            "the type that arrives. The same value in the annotated type has another key, and would run again. "
            "Convert it before the call, or make "
            "the key a text, as in key=lambda order_id: str(order_id). See docs/reference/keys.md",
            UserWarning,
            stacklevel=5,
        )

    def _read(self) -> dict[str, frozenset[object]]:
        hints = _hints(self._function)
        if self._chain:
            hint: object = hints.get(self._chain[0])
            for name in self._chain[1:]:
                hint = _hints(hint).get(name)
            hints = {".".join(self._chain): hint}
        self.forms = {name: forms for name, hint in hints.items() if (forms := _forms(hint))}
        return self.forms


def _hints(of: object) -> dict[str, object]:
    """Return the annotations of a function or a class; none if they cannot be read."""
    try:
        return typing.get_type_hints(getattr(of, "__func__", of))
    except Exception:  # evaluating an annotation can raise anything
        return {}


def _forms(hint: object) -> frozenset[object]:
    """Return the forms that keys of this annotation have; none if it does not tell."""
    if isinstance(hint, typing.NewType):
        return _forms(hint.__supertype__)
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        each = [_forms(one) for one in typing.get_args(hint) if one is not type(None)]
        return frozenset().union(*each) if all(each) else frozenset()
    if not isinstance(hint, type):
        return frozenset()
    form = form_of(hint)
    return frozenset({form}) if form is not hint or issubclass(hint, Enum) or _is_text_in_json(hint) else frozenset()


def _is_text_in_json(kind: type) -> bool:
    return any((one.__module__, one.__name__) in _WRITTEN_AS_TEXT for one in kind.__mro__)

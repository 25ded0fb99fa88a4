"""JMESPath over inputs, made strict: whatever would let a missing part pass for a present one is refused."""

import datetime as dt
import decimal
import uuid
from collections.abc import Iterable
from typing import Any, cast

import jmespath
import msgspec
from jmespath.exceptions import JMESPathError, JMESPathTypeError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from onceward.errors import KeyMissing

_BUILTIN = (dict, list, str, int, float, bool, type(None))
_DROPPING = {"projection", "value_projection", "filter_projection", "flatten"}


class Path:
    """A compiled JMESPath expression (jmespath.org/specification.html).

    Args:
        expression: the expression.
        option: what it is given for; "key" refuses projections, which drop missing parts without a word.

    Raises:
        ValueError: the expression is not valid, or not fit for a key.
    """

    def __init__(self, expression: str, option: str = "key") -> None:
        self.expression = expression
        try:
            self._compiled = jmespath.compile(expression)
            self.fields: set[str] = set()
            kinds: set[str] = set()
            _collect(self._compiled.parsed, self.fields, kinds)
            self._chain = _chain(self._compiled.parsed)
        except JMESPathError as error:
            raise ValueError(f"{option}={expression!r} is not a JMESPath expression: {error}") from error
        except RecursionError:
            raise ValueError(f"{option}={expression[:40]!r}… is nested too deeply: give a simpler expression") from None
        self.uses_whole = bool(kinds & {"current", "value_projection", "multi_select_dict"})
        if option == "key" and kinds & _DROPPING:
            raise ValueError(
                f"key={expression!r} has a projection ([], [*], *, [?…]), which drops missing parts, so that two inputs "
                "could get one key; name the parts, as in [order.shop, order.id], or give a callable"
            )
        self._reader = _Reader(strict=option == "key")

    def walk(self, value: object) -> object:
        """Return what an expression such as ``order.id`` finds in dicts; None where :meth:`search` must be asked.

        Takes a third of the time.
        """
        for name in self._chain:
            if type(value) is not dict:
                return None
            value = value.get(name)
        return value if self._chain else None

    def search(self, value: object) -> object:
        """Return what the expression finds in ``value``, None when that is nothing.

        Raises:
            KeyMissing: a function of the expression was given a missing or unfit part.
        """
        if (found := self.walk(value)) is not None:
            return found
        if type(value) is dict:
            value = {name: item if type(item) in _BUILTIN else _builtin(item) for name, item in value.items()}
        try:
            return cast("object", self._reader.visit(self._compiled.parsed, value))
        except JMESPathTypeError as error:  # whose own text quotes the value, and this one may be logged
            raise KeyMissing(
                f"{self.expression!r} cannot be read from this input: {error.function_name}() was given "
                f"{error.actual_type}, and takes {' or '.join(error.expected_types)}"
            ) from error
        except JMESPathError as error:
            raise KeyMissing(f"{self.expression!r} cannot be read from this input: {error}") from error
        except RecursionError:
            raise KeyMissing(
                f"{self.expression[:40]!r}… cannot be read from this input: it is nested too deeply"
            ) from None


class _Reader(TreeInterpreter):
    """Evaluates an expression; a key's ``[a, b]`` or ``{a: x}`` with a missing part is refused wherever it stands."""

    def __init__(self, *, strict: bool) -> None:
        super().__init__(jmespath.Options(custom_functions=_Strict()))
        self._strict = strict

    def visit_index(self, node: Any, value: object) -> Any:
        return super().visit_index(node, list(value) if isinstance(value, tuple) else value)

    def visit_multi_select_list(self, node: Any, value: object) -> Any:
        return self._complete(super().visit_multi_select_list(node, value))

    def visit_multi_select_dict(self, node: Any, value: object) -> Any:
        found = super().visit_multi_select_dict(node, value)
        self._complete(None if found is None else list(found.values()))
        return found

    def _complete(self, parts: object) -> object:
        if self._strict and isinstance(parts, list) and None in parts:
            raise KeyMissing("a part of the key is missing from the input")
        return parts


class _Strict(Functions):
    """JMESPath's functions; to_string(null), say, would be the str "null" for every input that lacks the part."""

    def call_function(self, function_name: str, resolved_args: Iterable[object]) -> object:
        resolved_args = list(resolved_args)
        if function_name not in {"not_null", "type"} and any(
            arg is None or (isinstance(arg, list) and None in arg) for arg in resolved_args
        ):
            raise KeyMissing(f"{function_name}() in the key was given a part that is missing from the input")
        return super().call_function(function_name, resolved_args)


def _chain(node: Any) -> tuple[str, ...]:
    """Return the fields of an expression that only goes down by name, as in ``order.id``; none for any other."""
    if node["type"] == "field":
        return (node["value"],)
    if node["type"] != "subexpression":
        return ()
    parts = [_chain(child) for child in node["children"]]
    return tuple(name for part in parts for name in part) if all(parts) else ()


def _collect(node: object, fields: set[str], kinds: set[str]) -> None:
    if isinstance(node, dict):
        kinds.add(node["type"])
        if node["type"] == "field":
            fields.add(node["value"])
        for child in node["children"]:
            _collect(child, fields, kinds)


def _builtin(value: object) -> object:
    """Return a dataclass, Struct or pydantic model as a dict, with its UUIDs and bytes as they are."""
    if hasattr(value, "model_dump"):
        return cast("object", value.model_dump())
    kept = (uuid.UUID, bytes, bytearray, decimal.Decimal, dt.datetime, dt.date)
    try:
        # What cannot be taken apart counts as missing, but only if the expression asks for it.
        return msgspec.to_builtins(value, builtin_types=kept, enc_hook=lambda _: None)
    except (TypeError, ValueError, NotImplementedError):
        return value  # JMESPath finds nothing in it, and the key is missing

"""Strict JMESPath over inputs: it refuses whatever could hide that a part is missing."""

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, cast

import jmespath
import msgspec
from jmespath.exceptions import JMESPathError, JMESPathTypeError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from onceward.errors import KeyMissing
from onceward.keys.roots import Roots

_BUILTIN = (dict, list, str, int, float, bool, type(None))
_DROPPING = {"projection", "value_projection", "filter_projection", "flatten"}
_STRICT = {"key", "at"}  # options whose parts must all be present


class StrictPath:
    """A compiled JMESPath expression (jmespath.org/specification.html) over inputs by name.

    Args:
        expression: the expression.
        option: its purpose; "key" and "at" refuse projections, which silently drop missing parts.
        roots: the names that it can begin with.

    Attributes:
        chain: the names in an expression such as ``order.id``; empty for any other form.

    Raises:
        ValueError: the expression is not valid, not fit for a key, or begins with another name.
    """

    def __init__(self, expression: str, option: str, roots: Roots) -> None:
        self.expression = expression
        spelling = spelled(option, expression)
        try:
            self._parsed = jmespath.compile(expression).parsed
            names = roots_of(self._parsed)
            self.chain = _chain(self._parsed)
            kinds = _kinds(self._parsed)
            self._parsed = _with_tuples(self._parsed)
            wrong = fault(option, expression, names, roots)
        except JMESPathError as error:
            raise ValueError(f"{spelling} is not a JMESPath expression: {error}") from error
        except RecursionError:
            raise ValueError(f"{spelling[:40]}… is nested too deeply: give a simpler expression") from None
        if option in _STRICT and kinds & _DROPPING:
            raise ValueError(
                f"{spelling} has a projection ([], [*], *, [?…]), which drops missing parts, so that two inputs could get one "
                "key; name the parts, as in [order.shop, order.id], or give a callable"
            )
        if wrong is not None:
            raise ValueError(wrong)
        self._roots = names
        self._interpreter = _StrictInterpreter(strict=option in _STRICT)

    def search(self, inputs: Mapping[str, object]) -> object:
        """Return what the expression finds in inputs by name, or None.

        Raises:
            KeyMissing: a function of the expression was given a missing or unfit part.
        """
        part: object = inputs
        for name in self.chain:
            if type(part) is not dict:
                break
            part = part.get(name)
        else:
            if self.chain and part is not None:
                return part
        # Inputs that the expression does not name can be of any type, so do not convert them.
        value = {
            name: item if type(item) in _BUILTIN else _builtin(item)
            for name in self._roots
            if (item := inputs[name]) is not None
        }
        try:
            return cast("object", self._interpreter.visit(self._parsed, value))
        except JMESPathTypeError as error:  # its own text quotes the value, and ours may be logged
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


class _StrictInterpreter(TreeInterpreter):
    """Evaluates an expression, and refuses a key's ``[a, b]`` or ``{a: x}`` with a missing part anywhere."""

    def __init__(self, *, strict: bool) -> None:
        super().__init__(jmespath.Options(custom_functions=_StrictFunctions()))
        self._strict = strict

    def visit_field(self, node: Any, value: object) -> Any:
        if not isinstance(value, _BUILTIN) and not hasattr(value, "get"):  # null for every input
            raise KeyMissing(
                f"a path cannot read {node['value']!r} from an object of type {type(value).__name__}. In a tuple, "
                "write the place, as in order.total[0]; else give a callable"
            )
        return super().visit_field(node, value)

    def visit_index(self, node: Any, value: object) -> Any:
        return super().visit_index(node, _listed(value))

    def visit_slice(self, node: Any, value: object) -> Any:
        return super().visit_slice(node, _listed(value))

    def visit_listed(self, node: Any, value: object) -> Any:
        return _listed(self.visit(node["children"][0], value))

    def visit_multi_select_list(self, node: Any, value: object) -> Any:
        return self._complete(super().visit_multi_select_list(node, value), node)

    def visit_multi_select_dict(self, node: Any, value: object) -> Any:
        parts = super().visit_multi_select_dict(node, value)
        self._complete(None if parts is None else list(parts.values()), node)
        return parts

    def _complete(self, parts: object, node: Any) -> object:
        if self._strict and isinstance(parts, list) and None in parts:
            at = next(number for number, part in enumerate(parts) if part is None)
            child = node["children"][at]
            chain = _chain(child["children"][0] if child["type"] == "key_val_pair" else child)
            raise KeyMissing(f"a part of the key is missing from the input: {'.'.join(chain) or f'part {at + 1}'}")
        return parts


class _StrictFunctions(Functions):
    """JMESPath's functions, without missing parts: to_string(null) would be "null" for every input that lacks it."""

    def call_function(self, function_name: str, resolved_args: Iterable[object]) -> object:
        resolved_args = list(resolved_args)
        if function_name not in {"not_null", "type"} and any(
            arg is None or (isinstance(arg, list) and None in arg) for arg in resolved_args
        ):
            raise KeyMissing(f"{function_name}() in the key was given a part that is missing from the input")
        return super().call_function(function_name, resolved_args)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _with_tuples(node: Any) -> Any:
    """Let the projections of a parsed expression see a tuple as a list: JMESPath finds nothing in it."""
    children = [_with_tuples(child) if isinstance(child, dict) else child for child in node["children"]]
    if node["type"] in _DROPPING - {"value_projection"}:
        children[0] = {"type": "listed", "children": children[:1]}
    return {**node, "children": children}


def _chain(node: Any) -> tuple[str, ...]:
    """Return the names in an expression such as ``order.id``; empty for any other form."""
    if node["type"] == "field":
        return (node["value"],)
    if node["type"] != "subexpression":
        return ()
    parts = [_chain(child) for child in node["children"]]
    return tuple(name for part in parts for name in part) if all(parts) else ()


def _kinds(node: Any) -> set[str]:
    """Return the types of all nodes of a parsed expression."""
    children = [child for child in node["children"] if isinstance(child, dict)]
    return {node["type"]}.union(*map(_kinds, children))


def _builtin(value: object) -> object:
    """Return a dataclass, Struct or pydantic model as a dict, with its UUIDs and bytes unchanged."""
    if hasattr(value, "model_dump"):
        return cast("object", value.model_dump())

    def missing(item: object) -> None:
        """A part that cannot be converted counts as missing, but only if the expression asks for it."""
        if item is value:
            raise NotImplementedError

    own_types = (uuid.UUID, bytes, bytearray, decimal.Decimal, dt.datetime, dt.date)
    try:
        return msgspec.to_builtins(value, builtin_types=own_types, enc_hook=missing)
    except (TypeError, ValueError, NotImplementedError):
        return value  # a path reads nothing from it


# --- the names that a path begins with, and their right spelling ---

WHOLE = "@"
_DOWN = {"subexpression", "pipe", "index_expression", "projection", "value_projection", "filter_projection", "flatten"}
_TYPO = 0.8  # least similarity (0 to 1) of a misspelt root; "order_id" is no typo for "order"


def roots_of(node: Any) -> set[str]:
    """Return the names that a parsed expression looks up in its input; ``@`` is the whole input."""
    kind = node["type"]
    if kind == "field":
        return {node["value"]}
    if kind in {"current", "identity"}:
        return {WHOLE}
    if kind in {"literal", "expref"}:
        return set()
    children = node["children"][:1] if kind in _DOWN else node["children"]
    return {name for child in children if isinstance(child, dict) for name in roots_of(child)}


def fault(option: str, expression: str, names: set[str], roots: Roots) -> str | None:
    """Return what is wrong with the names an expression begins with, and the right spelling; None if all is right."""
    spelling = spelled(option, expression)
    wrong = sorted(names.difference(roots.names))
    if not roots.start:
        return f"{spelling} {roots.fault}, so there is nothing to read it from"
    if not names:
        return f"{spelling} is the same for every input; name a field, as in {spelled(option, roots.start + '.id')}"
    if roots.claim in wrong:
        return f"{spelling} names the claim, which onceward fills in; name another parameter"
    if not wrong:
        return None
    return f"{spelling} {roots.fault}; write {spelled(option, _right(expression, wrong, roots, alone=len(wrong) == len(names)))}"


def spelled(option: str, expression: str) -> str:
    """Return an option with its expression as people write it; command arguments have it in braces."""
    return f"{{{expression}}}" if option == "argument" else f"{option}={expression!r}"


def _right(expression: str, wrong: list[str], roots: Roots, *, alone: bool) -> str:
    """Return the expression with its wrong roots corrected, as far as possible."""
    from difflib import get_close_matches  # for errors only

    fixed, start = expression, roots.start
    for name in wrong:
        close = [start] if name == roots.fixed else get_close_matches(name, roots.names, 1, _TYPO)
        right_name = close[0] if close else f"{start}.{name}"
        fixed = re.sub(rf"""(?<![\w.@"'`]){re.escape(name)}(?!\w|\s*:)""", right_name, fixed)
    spellings = [fixed]
    if alone:
        spellings += [f"{start}{expression}", f"{start}.{expression}", f"{start} | {expression}"]
    for right in spellings:
        if expression not in {right, WHOLE} and _fits(right, roots):
            return right
    return start


def _fits(expression: str, roots: Roots) -> bool:
    try:
        return roots_of(jmespath.compile(expression).parsed) <= set(roots.names)
    except JMESPathError:
        return False

"""JMESPath expressions other than plain chains of names, strictly read."""

from collections.abc import Iterable
from typing import Any, Final

import jmespath
from jmespath.exceptions import JMESPathError, JMESPathTypeError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from onceward.errors import KeyMissing
from onceward.keys.fields import field_of, opened, plain

WHOLE: Final = "@"
_DROPPING = {"projection", "value_projection", "filter_projection", "flatten"}
_DOWN = {"subexpression", "pipe", "index_expression", *_DROPPING}


class Expression:
    """A compiled expression.

    Args:
        expression: it.
        strict: whether a part that is missing is an error, and a projection not valid, because it drops missing parts.

    Attributes:
        chain: the names in an expression such as ``order."id"``; empty for any other form.
        roots: the names that it looks up in its input; ``@`` is the whole input.

    Raises:
        ValueError: it is not valid. The text says why, after the expression.
    """

    def __init__(self, expression: str, *, strict: bool) -> None:
        self._text = expression
        try:
            parsed = jmespath.compile(expression).parsed
            self.roots, self.chain = roots_of(parsed), _chain(parsed)
            drops = strict and not _DROPPING.isdisjoint(_kinds(parsed))
            self._parsed = _with_tuples(parsed)
        except JMESPathError as error:
            raise ValueError(f"is not a JMESPath expression: {error}") from error
        except RecursionError:
            raise ValueError("is nested too deeply: give a simpler expression") from None
        if drops:
            raise ValueError(
                "has a projection ([], [*], *, [?…]), which drops missing parts, so that two inputs could get one key; name the "
                "parts, as in [order.shop, order.id], or give a callable"
            )
        self._interpreter = _StrictInterpreter(strict=strict)

    def search(self, value: object) -> object:
        """Return what it finds in a value, or None; raises KeyMissing."""
        try:
            return plain(self._interpreter.visit(self._parsed, value))
        except JMESPathTypeError as error:  # its own text quotes the value, and ours may be logged
            raise KeyMissing(
                f"{self._text!r} cannot be read from this input: {error.function_name}() was given "
                f"{error.actual_type}, and takes {' or '.join(error.expected_types)}"
            ) from error
        except JMESPathError as error:
            raise KeyMissing(f"{self._text!r} cannot be read from this input: {error}") from error
        except RecursionError:
            raise KeyMissing(f"{self._text[:40]!r}… cannot be read from this input: it is nested too deeply") from None


class _StrictInterpreter(TreeInterpreter):
    """Evaluates an expression, and refuses a key's ``[a, b]`` or ``{a: x}`` with a missing part anywhere."""

    def __init__(self, *, strict: bool) -> None:
        super().__init__(jmespath.Options(custom_functions=_StrictFunctions()))
        self._strict = strict

    def visit_field(self, node: Any, value: object) -> Any:
        return field_of(value, node["value"])

    def visit_index(self, node: Any, value: object) -> Any:
        return super().visit_index(node, opened(value))

    def visit_slice(self, node: Any, value: object) -> Any:
        return super().visit_slice(node, opened(value))

    def visit_opened(self, node: Any, value: object) -> Any:
        return opened(self.visit(node["children"][0], value))

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
        resolved_args = [plain(arg) for arg in resolved_args]
        if function_name not in {"not_null", "type"} and any(
            arg is None or (isinstance(arg, list) and None in arg) for arg in resolved_args
        ):
            raise KeyMissing(f"{function_name}() in the key was given a part that is missing from the input")
        return super().call_function(function_name, resolved_args)


def _with_tuples(node: Any) -> Any:
    """Let the projections of a parsed expression see a tuple as a list: JMESPath finds nothing in it."""
    children = [_with_tuples(child) if isinstance(child, dict) else child for child in node["children"]]
    if node["type"] in _DROPPING:
        children[0] = {"type": "opened", "children": children[:1]}
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

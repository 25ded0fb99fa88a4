"""Finds the names that a path begins with, and the right spelling of a path that begins with a wrong name."""

import re
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError

from onceward.keys.roots import Roots

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


def fault(option: str, expression: str, found: set[str], roots: Roots) -> str | None:
    """Return what is wrong with the names an expression begins with, and the right spelling; None if all is right."""
    written = spelled(option, expression)
    wrong = sorted(found.difference(roots.names))
    if not roots.start:
        return f"{written} {roots.fault}, so there is nothing to read it from"
    if not found:
        return f"{written} is the same for every input; name a field, as in {spelled(option, roots.start + '.id')}"
    if roots.claim in wrong:
        return f"{written} names the claim, which onceward fills in; name another parameter"
    if not wrong:
        return None
    return f"{written} {roots.fault}; write {spelled(option, _right(expression, wrong, roots, alone=len(wrong) == len(found)))}"


def spelled(option: str, expression: str) -> str:
    """Return an option with its expression as people write it; command arguments have it in braces."""
    return f"{{{expression}}}" if option == "argument" else f"{option}={expression!r}"


def _right(expression: str, wrong: list[str], roots: Roots, *, alone: bool) -> str:
    """Return the expression with its wrong roots corrected, as far as possible."""
    from difflib import get_close_matches  # for errors only

    fixed, start = expression, roots.start
    for name in wrong:
        close = [start] if name == roots.fixed else get_close_matches(name, roots.names, 1, _TYPO)
        meant = close[0] if close else f"{start}.{name}"
        fixed = re.sub(rf"""(?<![\w.@"'`]){re.escape(name)}(?!\w|\s*:)""", meant, fixed)
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

"""Fills values of a line into ``{jmespath}`` in a command's arguments, never through a shell."""

from collections.abc import Iterator

import msgspec

from onceward.errors import KeyMissing
from onceward.keys.paths import StrictPath
from onceward.pipe.lines import LINE

_HINT = "write literal braces twice, {{ and }}"
_QUOTES = "'\"`"


class Template:
    """One argument: literal text and JMESPath expressions in turn.

    Raises:
        ValueError: a brace is left open, or an expression is not valid.
    """

    def __init__(self, argument: str) -> None:
        self._parts: list[str | StrictPath] = []
        for text, is_expression in _split(argument):
            if not is_expression:
                self._parts.append(text)
            elif not text.strip():
                raise ValueError(f"{{}} in {argument!r} names nothing: {{line}} is the whole line; {_HINT}")
            else:
                try:
                    self._parts.append(StrictPath(text, "argument", LINE))
                except ValueError as error:
                    raise ValueError(f"{error}; {_HINT}") from error

    @property
    def is_literal(self) -> bool:
        """Whether there is nothing to fill in."""
        return all(isinstance(part, str) for part in self._parts)

    def fill(self, value: object) -> str:
        """Return the argument for a parsed line; raises KeyMissing when a part of it is missing there."""
        return "".join(part if isinstance(part, str) else _found(part, value) for part in self._parts)


def _found(path: StrictPath, value: object) -> str:
    found = path.search({"line": value})
    if found is None:
        raise KeyMissing(f"{{{path.expression}}} finds nothing in this line")
    text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    if "\0" in text:
        raise KeyMissing(f"{{{path.expression}}} holds a NUL character, which an argument of a command cannot hold")
    return text


def _split(argument: str) -> Iterator[tuple[str, bool]]:
    """Yield (text, is expression) in turn. An expression may hold braces and quoted text of its own."""
    literal, at = "", 0
    while at < len(argument):
        two = argument[at : at + 2]
        if two in {"{{", "}}"}:
            literal, at = literal + two[0], at + 2
        elif two[0] == "}":
            raise ValueError(f"a }} in {argument!r} closes nothing; {_HINT}")
        elif two[0] == "{":
            if literal:
                yield literal, False
            end = _end(argument, at + 1)
            yield argument[at + 1 : end], True
            literal, at = "", end + 1
        else:
            literal, at = literal + two[0], at + 1
    if literal:
        yield literal, False


def _end(argument: str, at: int) -> int:
    """Return where the expression that begins at ``at`` is closed."""
    depth, quote, escaped = 0, "", False
    for i in range(at, len(argument)):
        c = argument[i]
        if escaped:
            escaped = False
        elif quote:
            escaped = c == "\\"
            quote = "" if c == quote else quote
        elif c in _QUOTES:
            quote = c
        elif c == "{":
            depth += 1
        elif c == "}":
            if depth == 0:
                return i
            depth -= 1
    raise ValueError(f"a {{ in {argument!r} is not closed; {_HINT}")

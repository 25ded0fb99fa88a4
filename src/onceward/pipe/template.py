"""Fills values of a line into ``{jmespath}`` in a command's arguments, never through a shell."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from onceward.errors import KeyMissing
from onceward.keys.paths import StrictPath
from onceward.pipe.lines import LINE


class Interpreter(NamedTuple):
    """A program that runs code from an argument."""

    names: re.Pattern[str]
    code: str  # letters of its options that take code
    others: str = ""  # letters of its options that take another argument
    long: tuple[str, ...] = ()  # its long options that take code, as the next argument or after ``=``
    anywhere: bool = False  # whether its options may also follow other arguments


_KNOWN: Final = (
    Interpreter(re.compile(r"(|ba|r|rba|da|a|k|mk|pdk|z|fi|c|tc)sh"), "c", "oO", ("--command",)),
    Interpreter(re.compile(r"su|runuser|flock|script"), "c", "", ("--command",), anywhere=True),
    Interpreter(re.compile(r"(python|pypy)[\d.]*"), "c", "XW"),
    Interpreter(re.compile(r"perl[\d.]*"), "eE"),
    Interpreter(re.compile(r"(ruby|lua)[\d.]*|osascript|Rscript"), "e"),
    Interpreter(re.compile(r"node|nodejs|bun"), "ep", "r", ("--eval", "--print")),
    Interpreter(re.compile(r"php[\d.]*"), "rBRE", "d", ("--run",)),
)
_JOINING: Final = re.compile(r"ssh|rsh")  # they join the words after the host, for a remote shell


def code_in(argv: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of each argument that is code, and the program that runs it, also in ``env sh -c``."""
    for at, word in enumerate(argv):
        name = word.rpartition("/")[2]
        if _JOINING.fullmatch(name):
            yield from ((i, name) for i in range(at + 1, len(argv)))
        for known in _KNOWN:
            if known.names.fullmatch(name) and (code := list(_given(known, argv, at + 1))):
                yield from ((i, name) for i in code)
                if not known.anywhere:
                    return  # what follows are the arguments of that code


def _given(known: Interpreter, argv: Sequence[str], at: int) -> Iterator[int]:
    while at < len(argv):
        word = argv[at]
        if word.startswith("--"):
            if word in known.long:
                yield at + 1
            elif word.startswith(tuple(f"{name}=" for name in known.long)):
                yield at
        elif len(word) > 1 and word[0] in "-+":
            code = next((i for i, letter in enumerate(word) if i and letter in known.code), None)
            if code is not None:
                yield from (at, at + 1)  # in the same argument, as perl allows, or in the next one
                at += 1
            elif word[-1] in known.others:
                at += 1
        elif not known.anywhere:
            return  # a script, or the name that a shell gives its code
        at += 1


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

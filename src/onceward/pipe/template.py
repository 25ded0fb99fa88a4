"""Fills values of a line into ``{jmespath}`` in a command's arguments, never through a shell."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from onceward.errors import KeyMissing
from onceward.keys.paths import StrictPath
from onceward.pipe.lines import LINE

# Programs that run code from an argument, and the letters of their options that take it.
_INTERPRETERS: Final = (
    (re.compile(r"(|ba|r|rba|da|a|k|mk|pdk|z|fi|c|tc)sh|su|runuser|flock|script|(python|pypy)[\d.]*"), "c"),
    (re.compile(r"(perl|ruby|lua)[\d.]*|osascript|Rscript"), "eE"),
    (re.compile(r"node|nodejs|bun"), "ep"),
    (re.compile(r"php[\d.]*"), "rBRE"),
)
_LONG: Final = frozenset({"--command", "--eval", "--print", "--run"})
_ANYWHERE: Final = frozenset({"su", "runuser", "flock", "script"})  # their options can follow other arguments
_JOINING: Final = frozenset({"ssh", "rsh"})  # they join the words after the host, for a remote shell


def code_in(argv: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of each argument that is code, and the program that runs it, also in ``env sh -c``."""
    for at, word in enumerate(argv):
        name = word.rpartition("/")[2]
        if name in _JOINING:
            yield from ((i, name) for i in range(at + 1, len(argv)))
        letters = next((letters for names, letters in _INTERPRETERS if names.fullmatch(name)), None)
        if letters is not None and (code := list(_code_places(letters, name, argv, at + 1))):
            yield from ((i, name) for i in code)
            if name not in _ANYWHERE:
                return  # what follows are the arguments of that code


def _code_places(letters: str, name: str, argv: Sequence[str], at: int) -> Iterator[int]:
    may_be_value = name in _ANYWHERE
    for number, word in enumerate(argv[at:], at):
        if word.startswith(("-", "+")):
            may_be_value = True  # the next word, of this option
            if word.partition("=")[0] in _LONG or re.match(rf"[-+]\w*[{letters}]", word):
                yield from (number, number + 1)  # in the same argument, as perl allows, or in the next one
        elif may_be_value:
            may_be_value = name in _ANYWHERE
        else:
            return  # a script, or the name that a shell gives its code


_HINT = "write literal braces twice, {{ and }}"
_PLAIN: Final = r"""[^{}'"`]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`(?:\\.|[^`\\])*`"""
_INNER: Final = rf"(?:{_PLAIN}|\{{(?:{_PLAIN}|\{{(?:{_PLAIN})*\}})*\}})*"  # JMESPath with braces of its own
_BRACES: Final = re.compile(rf"\{{\{{|\}}\}}|\{{({_INNER})\}}|[{{}}]", re.DOTALL)


class Template:
    """One argument: literal text and JMESPath expressions in turn.

    Raises:
        ValueError: a brace is left open, or an expression is not valid.
    """

    def __init__(self, argument: str) -> None:
        self._parts: list[str | StrictPath] = []
        at = 0
        for match in _BRACES.finditer(argument):
            self._parts.append(argument[at : match.start()])
            at = match.end()
            if match[1] is not None:
                self._parts.append(_path(match[1], argument))
            elif len(match[0]) == 1:
                raise ValueError(f"a {match[0]} in {argument!r} has no other one; {_HINT}")
            else:
                self._parts.append(match[0][0])
        self._parts.append(argument[at:])

    @property
    def is_literal(self) -> bool:
        """Whether there is nothing to fill in."""
        return all(isinstance(part, str) for part in self._parts)

    def fill(self, value: object) -> str:
        """Return the argument for a parsed line; raises KeyMissing when a part of it is missing there."""
        return "".join(part if isinstance(part, str) else _text(part, value) for part in self._parts)


def _path(text: str, argument: str) -> StrictPath:
    if not text.strip():
        raise ValueError(f"{{}} in {argument!r} names nothing: {{line}} is the whole line; {_HINT}")
    try:
        return StrictPath(text, "argument", LINE)
    except ValueError as error:
        raise ValueError(f"{error}; {_HINT}") from error


def _text(path: StrictPath, value: object) -> str:
    value = path.search({"line": value})
    if value is None:
        raise KeyMissing(f"{{{path.expression}}} finds nothing in this line")
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if "\0" in text:
        raise KeyMissing(f"{{{path.expression}}} holds a NUL character, which an argument of a command cannot hold")
    return text

"""Finds the arguments of a command that are code. A line must not be filled in there, or data would run as code."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple


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

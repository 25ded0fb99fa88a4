"""Reads docstrings: options of commands and settings of files are described where their types are.

A section in Google's style has a line for each name, as in ``path: the file.`` or ``every (T): how often.``
"""

import inspect
import re
from typing import Any, NamedTuple


class Described(NamedTuple):
    """What a docstring says of a name: the word in brackets, or "", and the text."""

    word: str
    text: str


def summary(of: object) -> str:
    """Return a docstring up to its sections."""
    return re.split(r"\n+(?:Attributes|Options):\n", inspect.cleandoc(of.__doc__ or ""), maxsplit=1)[0]


def section(of: object, title: str) -> dict[str, Described]:
    """Return a section of a docstring by its names."""
    match = re.search(rf"^{title}:\n((?:(?:    .*)?\n?)+)", inspect.cleandoc(of.__doc__ or ""), re.MULTILINE)
    items = re.findall(r"^    (\w+)(?: \((.*?)\))?: (.*(?:\n {8}.*)*)", match[1] if match else "", re.MULTILINE)
    return {name: Described(word, " ".join(text.split())) for name, word, text in items}


def attributes(kind: type) -> dict[str, str]:
    """Return the descriptions of a class's attributes, also those that it inherits."""
    return {name: one.text for base in reversed(kind.__mro__) for name, one in section(base, "Attributes").items()}


def describe(definition: dict[str, Any], kind: type) -> None:
    """Put what a class's docstring says of it, and of its fields, into its JSON Schema."""
    definition["description"] = summary(kind)
    for name, text in attributes(kind).items():
        if name in definition.get("properties", {}):
            definition["properties"][name]["description"] = text

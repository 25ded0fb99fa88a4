"""What docstrings say of arguments and attributes."""

import inspect
import re

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc|data|obj):`~?([^`]*)`")


def plain(text: str) -> str:
    """Return text of a docstring as Markdown."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def attributes(of: object, section: str = "Attributes") -> dict[str, str]:
    """Return a section of a docstring in Google's style: each name with its text."""
    found = re.search(rf"^{section}:\n((?:(?:    .*)?\n?)+)", inspect.getdoc(of) or "", re.MULTILINE)
    if found is None:
        return {}
    items = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", found[1], re.MULTILINE)
    return {name: plain(" ".join(text.split())) for name, text in items}

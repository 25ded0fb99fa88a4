"""Statements of SQL with named parameters, such as ``:amount``: read once, and rendered for each driver.

A value never becomes a part of the text: the driver sends or quotes it.
"""

import re
from typing import Final, Literal

Dialect = Literal["sqlite", "postgresql", "mysql"]
# What can hide a colon: texts, quoted names and comments, as each database writes them.
_COMMENTS: Final = r"--[^\n]*|/\*.*?\*/"
_PLAIN: Final = r"'(?:[^']|'')*'"
_ESCAPED: Final = r"'(?:[^'\\]|\\.|'')*'"
_OPAQUE: Final[dict[Dialect, str]] = {
    "sqlite": rf'{_PLAIN}|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|{_COMMENTS}',
    "postgresql": rf'\b[eE]{_ESCAPED}|{_PLAIN}|"(?:[^"]|"")*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|{_COMMENTS}|::',
    "mysql": rf'{_ESCAPED}|"(?:[^"\\]|\\.|"")*"|`[^`]*`|{_COMMENTS}|\#[^\n]*',
}
_NAME: Final = r":(?P<name>[A-Za-z_]\w*)"
# They end a transaction that onceward itself ends.
_ENDING: Final = frozenset({"abort", "begin", "commit", "end", "release", "rollback", "savepoint", "start", "xa"})
# The first words of MySQL's statements that commit nothing by themselves (MySQL Reference Manual, 15.3.3).
_MYSQL: Final = frozenset(
    {"call", "delete", "do", "explain", "insert", "replace", "select", "show", "table", "update", "values", "with"}
)
_EXECUTED: Final = re.compile(r"/\*M?!")  # MySQL and MariaDB run what is in such a comment


class Statement:
    """One statement.

    Attributes:
        names: of its parameters.

    Raises:
        ValueError: it is several statements, ends the transaction that it runs in, or has parameters without a name.
    """

    def __init__(self, text: str, dialect: Dialect) -> None:
        self._dialect = dialect
        pattern = re.compile(rf"{_OPAQUE[dialect]}|{_NAME}|(?P<question>\?)|(?P<percent>%)", re.DOTALL)
        names: dict[str, None] = {}
        questions = False

        def rendered(match: re.Match[str]) -> str:
            nonlocal questions
            if match["name"] is not None:
                names[match["name"]] = None
                return match[0] if dialect == "sqlite" else f"%({match['name']})s"
            questions = questions or match["question"] is not None
            # The drivers of PostgreSQL and MySQL read a percent sign anywhere, also in a text.
            return match[0] if dialect == "sqlite" else match[0].replace("%", "%%")

        self.text = pattern.sub(rendered, text)
        self.names = tuple(names)
        bare = re.sub(_OPAQUE[dialect], _without, text, flags=re.DOTALL)
        parts = [part.split() for part in bare.lower().split(";") if part.strip()]
        if not parts:
            raise ValueError("there is no statement")
        first = parts[0][0]
        has_inner = dialect == "sqlite" and first == "create"  # a trigger has statements in it
        if len(parts) > 1 and not has_inner:
            raise ValueError(
                "there is more than one statement here, and each would need a record: give each its own step"
            )
        prepares = parts[0][:2] == ["prepare", "transaction"]
        if dialect == "mysql":
            if any(_EXECUTED.match(one[0]) for one in re.finditer(_OPAQUE[dialect], text, flags=re.DOTALL)):
                raise ValueError("MySQL runs what is in a comment /*! ... */: write it without")
            word = (re.findall(r"\w+", " ".join(parts[0])) or [first])[0]
            if word not in _MYSQL:
                known = ", ".join(sorted(word.upper() for word in _MYSQL))
                raise ValueError(
                    f"{word.upper()} can end the transaction that this statement runs in, which is onceward's to end. On MySQL, give one "
                    f"of {known}"
                )
        if first in _ENDING or prepares:
            raise ValueError(
                f"{first.upper()} ends the transaction that this statement runs in, which is onceward's to end"
            )
        if questions and dialect == "sqlite":
            raise ValueError("a parameter has a name here, as in :amount, and ? has none")


def _without(opaque: re.Match[str]) -> str:
    """Return what stands for a text, a name or a comment while the statement's own words are read."""
    return " " if opaque[0].startswith(("--", "/*", "#")) else "''"

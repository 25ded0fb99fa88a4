"""Expressions over a message: JMESPath that begins with ``message`` or ``meta``."""

from typing import Any, Final, cast

import jmespath
from jmespath.exceptions import ArityError, JMESPathError, UnknownFunctionError
from jmespath.visitor import TreeInterpreter

from onceward.errors import KeyMissing
from onceward.keys.expressions import WHOLE, roots_of
from onceward.keys.paths import Roots, StrictPath, fault
from onceward.pipelines.call import PipelineMessage

ROOTS: Final = Roots(("message", "meta"), "begins with another name than message and meta", "message")
_INTERPRETER: Final = TreeInterpreter()


class PathFinder:
    """A compiled expression.

    Raises:
        ValueError: it is not valid, or begins with another name.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        try:
            self._parsed = _parsed(expression)
            names = roots_of(self._parsed)
        except JMESPathError as error:
            raise ValueError(f"not a JMESPath expression: {_short(error)}") from error
        except RecursionError:
            raise ValueError("not a JMESPath expression that can be read: it is nested too deeply") from None
        wrong = fault("it", expression, names, ROOTS) if names.difference(ROOTS.names, {WHOLE}) else None
        if wrong is not None:
            raise ValueError(wrong.replace("it=", ""))

    def __str__(self) -> str:
        return self.expression

    def __call__(self, message: PipelineMessage) -> Any:
        """Return what it finds in a message, or None.

        Raises:
            ValueError: a function of it was given a value of another kind.
        """
        try:
            return _INTERPRETER.visit(self._parsed, {"message": message.data, "meta": message.meta})
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"{self.expression!r} cannot be read from this message: {_short(error)}") from error

    def holds(self, message: PipelineMessage) -> bool:
        """Return whether what it finds counts as true in JMESPath: not null, false, "", [] or {}."""
        value = self(message)
        return not (value is None or value is False or (isinstance(value, str | list | dict) and not value))


class KeyFinder:
    """An expression for a key or a fingerprint. All its parts must be there.

    Raises:
        ValueError: it is not valid, or not fit for a key.
    """

    def __init__(self, expression: str) -> None:
        self._path = StrictPath(expression, "key", ROOTS)
        _parsed(expression)

    def __call__(self, message: PipelineMessage) -> object:
        """Return the key; raises KeyMissing."""
        value = self._path.search({"message": message.data, "meta": message.meta})
        if value is None:
            raise KeyMissing(f"{self._path.expression!r} finds nothing in this message")
        return value


def _parsed(expression: str) -> Any:
    """Return a parsed expression; raises JMESPathError if it is not valid, or calls a function that there is not."""
    parsed = jmespath.compile(expression).parsed
    try:
        _INTERPRETER.visit(parsed, {"message": None, "meta": {}})
    except (UnknownFunctionError, ArityError):
        raise
    except (TypeError, ValueError, ArithmeticError):
        pass  # it needs a message
    return parsed


def _short(error: Exception) -> str:
    """Return an error in one line. One of JMESPath is told without the value."""
    kind = getattr(error, "function_name", None)
    if kind is not None and hasattr(error, "actual_type"):
        expected = " or ".join(cast("list[str]", getattr(error, "expected_types", [])))
        return f"{kind}() was given {error.actual_type}, and takes {expected}"
    return " ".join(str(error).split())


MESSAGE: Final = PathFinder("message")  # the whole of it

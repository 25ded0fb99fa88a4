"""What onceward needs to know of a handler. It reads this once, when you decorate the handler."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple, get_args, get_origin, get_type_hints

from onceward.claim.called import ClaimParameter
from onceward.claim.claim import Claim
from onceward.keys.ledger_keys import function_name
from onceward.keys.paths import name_of


class Handler(NamedTuple):
    """What onceward needs to know of a function. An annotation that uses an undefined name counts as none."""

    name: str | None
    is_async: bool
    parameter: ClaimParameter | None
    annotation: object

    @property
    def claim(self) -> str | None:
        """The name of the parameter that takes the claim, if there is one."""
        return None if self.parameter is None else self.parameter.name


def handler_of(function: Callable[..., object]) -> Handler:
    """Look at a function once; raises TypeError for a generator, whose results cannot be recorded."""
    call = function if inspect.isroutine(function) or isinstance(function, partial) else type(function).__call__
    if any(inspect.isgeneratorfunction(form) or inspect.isasyncgenfunction(form) for form in (function, call)):
        raise TypeError(
            f"{name_of(function)} is a generator; guard a function that returns its result, or each item's work"
        )
    # The outermost function decides: a plain one can wrap a coroutine function, and the other way round.
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    hints = _hints(function)
    for_claim = next((name for name, kind in hints.items() if name != "return" and _is_claim(kind)), None)
    parameter = None if for_claim is None else ClaimParameter(for_claim, _place(function, for_claim))
    try:
        name = function_name(function)
    except ValueError:
        name = None
    annotation = hints.get("return", object)
    if not is_async and get_origin(annotation) in {Awaitable, Coroutine}:
        annotation = get_args(annotation)[-1]  # what run_async gets by awaiting
    return Handler(name, is_async, parameter, annotation)


def _place(function: Callable[..., object], name: str) -> int | None:
    parameters = inspect.signature(function).parameters
    by_place = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return list(parameters).index(name) if name in parameters and parameters[name].kind in by_place else None


def hint(function: Callable[..., object], name: str) -> object:
    """Return one evaluated annotation; raises NameError if it uses an undefined name. The others can."""
    target = _annotated(function)
    one = SimpleNamespace(__annotations__={name: target.__annotations__[name]})
    space = getattr(inspect.unwrap(target), "__globals__", {})
    return get_type_hints(one, globalns=space, include_extras=True)[name]


def _annotated(function: Callable[..., object]) -> Callable[..., object]:
    """Return the object that has the annotations of a function, a partial or a callable object."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__annotations__") else type(function).__call__


def _hints(function: Callable[..., object]) -> dict[str, object]:
    """Return the annotations that can be evaluated."""
    target = _annotated(function)
    try:
        return get_type_hints(target, include_extras=True)
    except NameError:
        pass  # a name is undefined, or for type checkers only; that annotation may not matter
    except TypeError:
        return {}  # a callable without annotations of its own
    hints: dict[str, object] = {}
    for name, annotation in target.__annotations__.items():
        try:
            hints[name] = hint(function, name)
        except NameError:
            if annotation in {"Claim", "onceward.Claim"}:
                hints[name] = Claim
    return hints


def _is_claim(kind: object) -> bool:
    return kind is Claim or Claim in get_args(kind)

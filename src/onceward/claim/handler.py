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
from onceward.results.codec import Codec, decoder_of


class Handler(NamedTuple):
    """What onceward needs to know of a function.

    With ``hints_late``, the result's annotation uses a name that is not defined yet. It is read again at the first call.
    """

    name: str | None
    is_async: bool
    parameter: ClaimParameter | None
    annotation: object
    hints_late: bool

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
    hints, late = _hints(function)
    for_claim = next((name for name, kind in hints.items() if name != "return" and _is_claim(kind)), None)
    parameter = None if for_claim is None else ClaimParameter(for_claim, _place(function, for_claim))
    try:
        name = function_name(function)
    except ValueError:
        name = None
    annotation = hints.get("return", object)
    if not is_async and get_origin(annotation) in {Awaitable, Coroutine}:
        annotation = get_args(annotation)[-1]  # what run_async gets by awaiting
    return Handler(name, is_async, parameter, annotation, late)


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


def _hints(function: Callable[..., object]) -> tuple[dict[str, object], bool]:
    """Return the evaluated annotations, and whether the result's must wait."""
    target = _annotated(function)
    try:
        return get_type_hints(target, include_extras=True), False
    except NameError:
        pass  # a name is undefined, or for type checkers only; that annotation may not matter
    except TypeError:
        return {}, False  # a callable without annotations of its own
    hints: dict[str, object] = {}
    for name, annotation in target.__annotations__.items():
        try:
            hints[name] = hint(function, name)
        except NameError:
            if annotation in {"Claim", "onceward.Claim"}:
                hints[name] = Claim
    return hints, "return" in target.__annotations__ and "return" not in hints


def _is_claim(kind: object) -> bool:
    return kind is Claim or Claim in get_args(kind)


def codec_of(function: Callable[..., object], handler: Handler) -> Codec:
    """Return the codec of a handler; raises TypeError if results of its return type cannot be stored."""
    return LateCodec(function) if handler.hints_late else Codec(handler.annotation)


class LateCodec(Codec):
    """The codec of a handler whose annotations use names that are defined later. It is made at the first use."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self._function: Callable[..., object] | None = function
        self.resolve = self._resolve

    def _resolve(self) -> None:
        """Read the annotations now; raises TypeError if they still use an undefined name, or a type that cannot be stored."""
        if self._function is None:
            return
        try:
            annotation = hint(self._function, "return")
        except NameError as error:
            raise TypeError(
                f"{self._function.__qualname__}: its annotations name {error.name!r}, which is not defined when it is called; "
                "import it at run time, or leave the return annotation out"
            ) from error
        self._decoder = decoder_of(annotation)  # at once: other threads may be reading a result
        self._function = self.resolve = None

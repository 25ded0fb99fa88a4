"""From a function's signature and options to its key and fingerprint, decided once when it is decorated."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from onceward.claim.called import ClaimParameter
from onceward.claim.claim import Claim
from onceward.errors import KeyMissing
from onceward.keys.ledger_keys import fingerprint_of, function_name

KeySource = str | Callable[..., object]
Arguments = dict[str, object]
Read = Callable[[Arguments], object]


class Handler(NamedTuple):
    """What onceward needs to know of a function.

    ``hints_late`` is set when the result's annotation names what is not defined yet; it is read again at the first call.
    """

    name: str | None
    is_async: bool
    parameter: ClaimParameter | None
    annotation: object
    hints_late: bool


def describe(function: Callable[..., object]) -> Handler:
    """Look at a function once.

    Raises:
        TypeError: it is a generator, whose results could not be recorded.
    """
    call = function if inspect.isroutine(function) or isinstance(function, partial) else type(function).__call__
    if any(inspect.isgeneratorfunction(form) or inspect.isasyncgenfunction(form) for form in (function, call)):
        raise TypeError(
            f"{_called(function)} is a generator; guard a function that returns its result, or each item's work"
        )
    # What wraps a coroutine function may be a plain one, and the other way round: the outermost is what is called.
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    hints, late = _hints(function)
    taken = next((name for name, kind in hints.items() if name != "return" and _is_claim(kind)), None)
    parameter = None if taken is None else ClaimParameter(taken, _place(function, taken))
    try:
        name = function_name(function)
    except ValueError:
        name = None
    annotation = hints.get("return", object)
    if not is_async and get_origin(annotation) in {Awaitable, Coroutine}:
        annotation = get_args(annotation)[-1]  # what run_async gets when it awaits it
    return Handler(name, is_async, parameter, annotation, late)


def _place(function: Callable[..., object], name: str) -> int | None:
    parameters = inspect.signature(function).parameters
    by_place = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return list(parameters).index(name) if name in parameters and parameters[name].kind in by_place else None


def hint(function: Callable[..., object], name: str) -> object:
    """Return one evaluated annotation; the others may name what is not defined.

    Raises:
        NameError: it names what is not defined.
    """
    target = _annotated(function)
    one = SimpleNamespace(__annotations__={name: target.__annotations__[name]})
    space = getattr(inspect.unwrap(target), "__globals__", {})
    return get_type_hints(one, globalns=space, include_extras=True)[name]


def _annotated(function: Callable[..., object]) -> Callable[..., object]:
    """Return what carries the annotations of a function, a partial or a callable object."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__annotations__") else type(function).__call__


def _hints(function: Callable[..., object]) -> tuple[dict[str, object], bool]:
    """Return the evaluated annotations, and whether the one of the result has to wait."""
    target = _annotated(function)
    try:
        return get_type_hints(target, include_extras=True), False
    except NameError:
        pass  # one of them is not defined, or for type checkers only; that need not be one that matters
    except TypeError:
        return {}, False  # a callable without annotations of its own
    hints: dict[str, object] = {}
    for name, written in target.__annotations__.items():
        try:
            hints[name] = hint(function, name)
        except NameError:
            if written in {"Claim", "onceward.Claim"}:
                hints[name] = Claim
    return hints, "return" in target.__annotations__ and "return" not in hints


def _is_claim(kind: object) -> bool:
    return kind is Claim or Claim in get_args(kind)


class Inputs:
    """Reads key and fingerprint from the arguments of a call.

    Args:
        function: the handler.
        key: a JMESPath expression (jmespath.org) over the arguments by name, or a callable that is given those of the
            arguments that it names (or the first one, if its only parameter has another name).
        fingerprint: the same, or True for all arguments, or None for no fingerprint.
        claim_parameter: the parameter that onceward fills in, if any.

    Raises:
        TypeError, ValueError: the options do not fit the function.
    """

    def __init__(
        self,
        function: Callable[..., object],
        key: KeySource,
        fingerprint: KeySource | bool | None,
        claim_parameter: ClaimParameter | None,
    ) -> None:
        signature = inspect.signature(function)
        parameters = [
            p for p in signature.parameters.values() if claim_parameter is None or p.name != claim_parameter.name
        ]
        self.signature = signature.replace(parameters=parameters)
        names = [p.name for p in parameters]
        # With these in order and nothing more, binding is a zip; everything else goes through inspect.
        simple = all(p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD} for p in parameters)
        self._names = names if simple else None
        self._count = len(names)
        self._key = _reader(function, "key", key, names)
        self._fingerprint: Read | None = None
        if fingerprint is True:
            self._fingerprint = _all_but_self
        elif fingerprint is not None and fingerprint is not False:
            self._fingerprint = _reader(function, "fingerprint", fingerprint, names)

    def before(self, check: Callable[[tuple[object, ...]], None]) -> None:
        """Call ``check`` with the arguments that are given by place, before each of the following reads."""
        read = self.read

        def checked(args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[object, str | None]:
            check(args)
            return read(args, kwargs)

        self.read = checked  # type: ignore[method-assign]  # of this one

    def read(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[object, str | None]:
        """Return the key and the fingerprint of a call.

        Raises:
            TypeError: the arguments do not fit the function.
            KeyMissing: the key is not there.
        """
        if self._names is not None and not kwargs and len(args) == self._count:
            arguments = dict(zip(self._names, args, strict=True))
        else:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = bound.arguments
        try:
            key = self._key(arguments)
        except (LookupError, AttributeError) as error:  # of a callable: order["id"], order.id
            raise KeyMissing(
                f"the key is missing from the input, and the handler did not run: key= raised {error!r}"
            ) from error
        return key, None if self._fingerprint is None else fingerprint_of(self._fingerprint(arguments))


def _all_but_self(arguments: Arguments) -> object:
    return {name: value for name, value in arguments.items() if name not in {"self", "cls"}}


def _reader(function: Callable[..., object], option: str, source: KeySource, names: Sequence[str]) -> Read:
    if isinstance(source, str):
        return _jmespath_reader(function, option, source, names)
    if not callable(source):
        raise TypeError(f"{option}={source!r}: give a JMESPath expression over the arguments, or a callable")
    try:
        wanted = [
            p.name
            for p in inspect.signature(source).parameters.values()
            if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}
            and (p.default is p.empty or p.name in names)
        ]
    except (TypeError, ValueError):  # operator.itemgetter and other builtins tell nothing
        wanted = ["?"]
    if all(name in names for name in wanted) and wanted:
        if len(wanted) == 1:
            only = wanted[0]
            return lambda arguments: source(arguments[only])
        return lambda arguments: source(**{name: arguments[name] for name in wanted})
    if len(wanted) == 1 and names:
        first = names[1] if names[0] in {"self", "cls"} and len(names) > 1 else names[0]
        return lambda arguments: source(arguments[first])
    raise ValueError(
        f"{option}= takes {', '.join(wanted) or 'no arguments'}, but {_called(function)} takes {', '.join(names) or 'none'}: "
        "let it name those of the arguments that it needs"
    )


def _jmespath_reader(function: Callable[..., object], option: str, expression: str, names: Sequence[str]) -> Read:
    from onceward.keys.paths import Path

    path = Path(expression, option)
    wanted = [name for name in names if name in path.fields]
    if not wanted and not path.uses_whole:
        raise ValueError(
            f"{option}={expression!r} names none of the arguments of {_called(function)} ({', '.join(names) or 'it takes none'}): "
            f"start it with one of them, as in {option}='{names[0] if names else 'order'}.id'"
        )
    strict = option == "key"

    def read(arguments: Arguments) -> object:
        value = path.walk(arguments)
        if value is None:
            value = path.search({name: arguments[name] for name in wanted} if wanted else arguments)
        if value is None and strict:
            raise KeyMissing(
                f"{_called(function)}: key={expression!r} found nothing in the arguments; the handler did not run. Check the "
                "input, or choose a field that it always has"
            )
        return value

    return read


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))

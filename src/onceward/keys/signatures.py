"""Reads key and fingerprint from a call's arguments. The signature is read once, when you decorate the function."""

import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeVar

from onceward.keys.ledger_keys import ledger_key
from onceward.keys.paths import Roots, name_of
from onceward.keys.reading import KeyReader, KeySource

K = TypeVar("K")
Args = tuple[object, ...]
Kwargs = Mapping[str, object]
ReadCall = Callable[[Args, Kwargs], tuple[str, str | None]]
_STARS: Mapping[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class CallReader:
    """Reads key and fingerprint from the arguments of a call, as :class:`onceward.keys.reading.KeyReader` does.

    The inputs are the arguments by name, without the parameter ``claim``, which onceward fills in. A fingerprint of all arguments
    is without those that are ``filled`` in by a framework.

    Attributes:
        signature: the function's signature without the claim, for callers.

    Raises:
        TypeError, ValueError: the options do not fit the function.
    """

    def __init__(
        self,
        function: Callable[..., object],
        key: KeySource,
        fingerprint: KeySource | bool | None,
        claim: str | None,
        *,
        option: str = "key",
        filled: Collection[str] = (),
    ) -> None:
        self.signature = without(function, claim)
        parameters = self.signature.parameters.values()
        # With only these, in order, binding is a zip; all other calls go through inspect.
        self._simple = all(p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD} for p in parameters)
        self._names = tuple(self.signature.parameters)
        roots = roots_of(function, parameters, claim)
        self._keys = KeyReader(key, fingerprint, roots, option=option, handler=name_of(function), filled=filled)

    def under(self, name: str, check: Callable[[Args], None] | None = None) -> ReadCall:
        """Return a function that reads a call's ledger key, in the namespace ``name``, and its fingerprint.

        It raises the errors of :meth:`read`, and TypeError for a key of another type. ``check`` is called before each read
        with the positional arguments.
        """
        reads: ReadCall = self.reads(partial(ledger_key, name))
        if check is None:
            return reads

        def checked(args: Args, kwargs: Kwargs) -> tuple[str, str | None]:
            check(args)
            return reads(args, kwargs)

        return checked

    def reads(self, form: Callable[[object], K]) -> Callable[[Args, Kwargs], tuple[K, str | None]]:
        """Return a function that does what :meth:`read` does, faster for common paths, and gives the key its ``form``."""
        read = self.read

        def whole(args: Args, kwargs: Kwargs) -> tuple[K, str | None]:
            key, fingerprint = read(args, kwargs)
            return form(key), fingerprint

        chain = self._keys.chain
        if not (self._simple and chain) or self._keys.prints:
            return whole
        place, down, count = self._names.index(chain[0]), chain[1:], len(self._names)

        def plain(args: Args, kwargs: Kwargs) -> tuple[K, str | None]:
            if not kwargs and len(args) == count:
                value = args[place]
                for part in down:
                    if type(value) is not dict:
                        break
                    value = value.get(part)
                else:
                    if value is not None:
                        return form(value), None
            return whole(args, kwargs)

        return plain

    def read(self, args: Args, kwargs: Kwargs) -> tuple[object, str | None]:
        """Return the key and the fingerprint of a call.

        Raises:
            TypeError: the arguments do not fit the function.
            KeyMissing: the key is missing.
        """
        if self._simple and not kwargs and len(args) == len(self._names):
            arguments = dict(zip(self._names, args, strict=True))
        else:
            call = self.signature.bind(*args, **kwargs)
            call.apply_defaults()
            arguments = call.arguments
        return self._keys.key(arguments, arguments), self._keys.fingerprint(arguments, arguments)


def without(function: Callable[..., object], claim: str | None) -> inspect.Signature:
    """Return the signature of a function without the claim, for callers."""
    signature = inspect.signature(function)
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != claim])


def filled_in(function: Callable[..., object], kinds: tuple[type, ...]) -> set[str]:
    """Return the parameters that a framework fills in: their default or an annotation is one of its ``kinds``."""
    try:
        hints = inspect.get_annotations(function, eval_str=True)
    except Exception:  # names that are there for type checkers only
        hints = {}
    parameters = inspect.signature(function).parameters.values()
    marks = {p.name: (p.default, *typing.get_args(hints.get(p.name))) for p in parameters}
    return {name for name, several in marks.items() if any(isinstance(mark, kinds) for mark in several)}


def given_by_place(function: Callable[..., object], claim: str | None) -> list[inspect.Parameter]:
    """Return the parameters that take positional arguments, without the claim."""
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    }
    return [p for p in without(function, claim).parameters.values() if p.kind in kinds]


def roots_of(
    function: Callable[..., object],
    parameters: Iterable[inspect.Parameter],
    claim: str | None,
    start: str | None = None,
) -> Roots:
    """Return the names that a path over those ``parameters`` of a function that are inputs can begin with.

    ``start`` is the prefix of a payload's field in a path; by default the first parameter that is not self.
    """
    all_of = list(parameters)
    text = ", ".join(f"{_STARS.get(p.kind, '')}{p.name}" for p in all_of)
    if start is None:
        first = next((p for p in all_of if p.name not in {"self", "cls"}), None)
        several = first is not None and first.kind is first.VAR_POSITIONAL
        start = "" if first is None else f"{first.name}[0]" if several else first.name
    name = name_of(function).rpartition(".")[2]
    return Roots(tuple(p.name for p in all_of), f"names no parameter of {name}({text})", start, claim)

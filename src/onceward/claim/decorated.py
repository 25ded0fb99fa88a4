"""A guarded function: it reads the key from a call's arguments, and calls its guard."""

import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from onceward.claim import durable
from onceward.claim.factory import GuardFactory
from onceward.claim.replays import CallOutcome
from onceward.core.policy import Options
from onceward.keys.reading import KeySource
from onceward.keys.signatures import CallReader

Function = Callable[..., object]
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")


class GuardedFunction(Protocol[P, R_co]):
    """What type checkers know of a decorated function or method."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it once for its key, or return the recorded result."""

    def key_of(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key in the ledger of a call with these arguments."""

    @overload
    def outcome(  # type: ignore[overload-overlap]  # a coroutine function is a function, too
        self: "GuardedFunction[Q, Coroutine[Any, Any, T]]", *args: Q.args, **kwargs: Q.kwargs
    ) -> Coroutine[Any, Any, CallOutcome[T]]: ...

    @overload
    def outcome(self, *args: P.args, **kwargs: P.kwargs) -> CallOutcome[R_co]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> "GuardedFunction[P, R_co]": ...

    @overload
    def __get__(self: "GuardedFunction[Concatenate[S, Q], R_co]", instance: S, owner: type) -> Callable[Q, R_co]: ...


class Decorator(Protocol):
    """What type checkers know of ``once(key=...)``."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[type[S], Q], R], /
    ) -> Callable[Concatenate[type[S], Q], R]: ...  # of a class method

    @overload
    def __call__(self, function: Callable[P, R], /) -> GuardedFunction[P, R]: ...


class DecoratedHandler:
    """A handler with its guard, and what reads its keys. A pickled one is made anew where it arrives, with the same namespace.

    The functions around a handler refer to nothing else, so that cloudpickle can send them.
    """

    def __init__(
        self,
        guards: GuardFactory,
        function: Function,
        key: KeySource,
        fingerprint: KeySource | bool | None,
        name: str | None,
        options: Options,
    ) -> None:
        self.function = function
        self.guard, handler = guards.for_function(function, name, options, keeps=True)
        self.is_async = handler.is_async
        reader = CallReader(function, key, fingerprint, handler.claim)
        self.signature = reader.signature
        self.read = reader.under(self.guard.name, guards.class_check(name, self.guard, function))
        self._arguments = (guards, function, key, fingerprint, self.guard.name, options)

    def __reduce__(self) -> tuple[object, ...]:
        return DecoratedHandler, self._arguments

    def wrapped(self) -> Function:
        """Return the function guarded, as :meth:`Once.__call__` says."""
        of = self

        def key_of(*args: object, **kwargs: object) -> str:
            """Return the key in the ledger of a call with these arguments."""
            return of.read(args, kwargs)[0]

        def calling(*, whole: bool) -> Function:
            async def call_async(*args: object, **kwargs: object) -> object:
                if durable.SDK in sys.modules:
                    durable.refuse(args, kwargs)
                key, print_ = of.read(args, kwargs)
                return await of.guard.call_async(key, print_, of.function, args, kwargs, whole=whole)

            def call(*args: object, **kwargs: object) -> object:
                key, print_ = of.read(args, kwargs)
                if durable.SDK in sys.modules:
                    return durable.call(of.guard, key, print_, of.function, args, kwargs, whole=whole)
                return of.guard.call(key, print_, of.function, args, kwargs, whole=whole)

            return call_async if of.is_async else call

        wrapper = wraps(self.function)(calling(whole=False))
        # inspect reads the signature, and the completer ``guarded``; the others are documented at Once.__call__.
        vars(wrapper).update(__signature__=self.signature, key_of=key_of, outcome=calling(whole=True), guarded=self)
        return wrapper

"""Downstreams of a crash test: each call of one is an effect, and a point at which the worker can be struck."""

import inspect
from collections.abc import Callable, Collection
from functools import partial, wraps
from typing import Any, Final, NamedTuple, Protocol

_OURS: Final = "_onceward_downstream"


class EffectMade(NamedTuple):
    """An effect that a downstream has made: whose it is, and the arguments of its call that count."""

    name: str
    arguments: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(str(one) for one in self.arguments)})"


class Calls(Protocol):
    """Makes the calls of downstreams, or does worse.

    ``known`` is what the downstream of a call knows it by; it knows no repetition of one with None.
    """

    def number_of(self, target: object) -> int:
        """Return which downstream of the run this is."""

    def call(self, effect: EffectMade, known: object, make: Callable[[], object]) -> object:
        """Make one call, or return the answer of the one that it repeats."""

    async def call_async(self, effect: EffectMade, known: object, make: Callable[[], Any]) -> object:
        """Like :meth:`call`, for a coroutine."""


class DownstreamCalls(NamedTuple):
    """How the calls of one downstream are read.

    Attributes:
        name: the downstream's, for reports.
        only: the methods that have an effect; empty for all.
        by: the argument with which the downstream knows a repetition; None if it knows none.
        ignoring: arguments that may differ between two calls of the same effect.
    """

    name: str
    only: Collection[str]
    by: str | None
    ignoring: Collection[str]

    def effect(self, label: str, function: Callable[..., object], args: Any, kwargs: Any) -> tuple[EffectMade, object]:
        """Return the effect of a call, and what its downstream knows it by."""
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
            named: dict[str, object] = dict(bound.arguments)
        except (TypeError, ValueError):  # a builtin, or a wrong call, which raises its own error
            named = {**{str(place): one for place, one in enumerate(args)}, **kwargs}
        more = named.get("kwargs")
        if isinstance(more, dict):  # of **kwargs, each has its own name
            del named["kwargs"]
            named |= more
        known = named.pop(self.by, None) if self.by else None
        shown = tuple(repr(value) for name, value in named.items() if name not in self.ignoring)
        return EffectMade(label, shown), known


def downstream(target: Any, reading: DownstreamCalls, calls: Calls) -> Any:
    """Return ``target``, a function or an object, so that its calls go through ``calls``."""
    target = vars(target).get(_OURS, target) if hasattr(target, "__dict__") else target
    if inspect.isroutine(target):
        wrapped = _effect(target, reading.name, reading, calls, calls.number_of(target))
        vars(wrapped)[_OURS] = target
        return wrapped
    return _Proxy(target, reading, calls)


def _effect(function: Any, label: str, reading: DownstreamCalls, calls: Calls, number: int) -> Any:
    def read(args: Any, kwargs: Any) -> tuple[EffectMade, object]:
        effect, known = reading.effect(label, function, args, kwargs)
        return effect, None if known is None else (number, label, known)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(*args: object, **kwargs: object) -> object:
            return await calls.call_async(*read(args, kwargs), partial(function, *args, **kwargs))

        return call_async

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        return calls.call(*read(args, kwargs), partial(function, *args, **kwargs))

    return call


class _Proxy:
    """Stands in for an object. What is no effect goes to the object itself."""

    def __init__(self, target: object, reading: DownstreamCalls, calls: Calls) -> None:
        number = calls.number_of(target)
        vars(self).update({_OURS: target, "_reading": reading, "_calls": calls, "_number": number})

    @property  # type: ignore[misc]  # isinstance() asks about the object
    def __class__(self) -> type:
        return type(vars(self)[_OURS])

    def __getattr__(self, name: str) -> Any:
        held = vars(self)
        value, reading = getattr(held[_OURS], name), held["_reading"]
        wanted = name in reading.only if reading.only else not name.startswith("_")
        if not wanted or not callable(value) or isinstance(value, type):
            return value
        return _effect(value, f"{reading.name}.{name}", reading, held["_calls"], held["_number"])

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)[_OURS], name, value)

    def __call__(self, *args: object, **kwargs: object) -> object:
        held = vars(self)
        reading = held["_reading"]
        return _effect(held[_OURS], reading.name, reading, held["_calls"], held["_number"])(*args, **kwargs)

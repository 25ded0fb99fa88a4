"""Downstreams of a crash test: each call of one is an effect, and a point at which the worker can be struck."""

import inspect
from collections.abc import Callable, Collection
from functools import partial, wraps
from typing import Any, Final, NamedTuple

from onceward.core.drivers import Steps, drive, drive_async
from onceward.testing.stage import ACTORS, Act

_OURS: Final = "_onceward_downstream"


class EffectMade(NamedTuple):
    """An effect that a downstream has made: whose it is, and the arguments of its call that count."""

    name: str
    arguments: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(str(one) for one in self.arguments)})"


class DownstreamCalls(NamedTuple):
    """How the calls of one downstream are read.

    Attributes:
        name: the downstream's, for reports.
        only: the methods that have an effect; empty for all.
        by: the argument with which the downstream knows a repetition; None if it knows none.
        ignoring: arguments that may differ between two calls of the same effect.
        make: makes a call: an effect, and what its downstream knows it by.
    """

    name: str
    only: Collection[str]
    by: str | None
    ignoring: Collection[str]
    make: Callable[[EffectMade, object, Act], Steps[object]]

    def effect(self, label: str, function: Callable[..., object], args: Any, kwargs: Any) -> tuple[EffectMade, object]:
        """Return the effect of a call, and what its downstream knows it by."""
        try:
            call = inspect.signature(function).bind(*args, **kwargs)
            arguments: dict[str, object] = dict(call.arguments)
        except (TypeError, ValueError):  # a builtin, or a wrong call, which raises its own error
            arguments = {**{str(place): one for place, one in enumerate(args)}, **kwargs}
        more = arguments.get("kwargs")
        if isinstance(more, dict):  # of **kwargs, each has its own name
            del arguments["kwargs"]
            arguments |= more
        mark = arguments.pop(self.by, None) if self.by else None
        texts = tuple(repr(value) for name, value in arguments.items() if name not in self.ignoring)
        return EffectMade(label, texts), mark


def downstream(target: Any, calls: DownstreamCalls) -> Any:
    """Return ``target``, a function or an object, so that its calls go through ``calls``."""
    target = vars(target).get(_OURS, target) if hasattr(target, "__dict__") else target
    if inspect.isroutine(target):
        wrapped = _effect(target, calls.name, calls, getattr(target, "__self__", target))
        vars(wrapped)[_OURS] = target
        return wrapped
    return _Proxy(target, calls)


def _effect(function: Any, label: str, calls: DownstreamCalls, whose: object) -> Any:
    def acts(args: Any, kwargs: Any) -> Steps[object]:
        effect, mark = calls.effect(label, function, args, kwargs)
        make = partial(function, *args, **kwargs)
        return calls.make(effect, None if mark is None else (id(whose), label, mark), Act(make, make))

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(*args: object, **kwargs: object) -> object:
            return await drive_async(acts(args, kwargs), ACTORS)

        return call_async

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        return drive(acts(args, kwargs), ACTORS)

    return call


class _Proxy:
    """Stands in for an object. What is no effect goes to the object itself."""

    def __init__(self, target: object, calls: DownstreamCalls) -> None:
        vars(self).update({_OURS: target, "_calls": calls})

    @property  # type: ignore[misc]  # isinstance() asks about the object
    def __class__(self) -> type:
        return type(vars(self)[_OURS])

    def __getattr__(self, name: str) -> Any:
        target, calls = vars(self).values()
        value = getattr(target, name)
        counts = name in calls.only if calls.only else not name.startswith("_")
        if not counts or not callable(value) or isinstance(value, type):
            return value
        return _effect(value, f"{calls.name}.{name}", calls, target)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)[_OURS], name, value)

    def __call__(self, *args: object, **kwargs: object) -> object:
        target, calls = vars(self).values()
        return _effect(target, calls.name, calls, target)(*args, **kwargs)

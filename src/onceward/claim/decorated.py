"""A guarded function: from a call's arguments to its key, and to its guard."""

from collections.abc import Callable
from functools import wraps

from onceward.claim.factory import GuardFactory
from onceward.core.policy import Options
from onceward.keys.reading import KeySource
from onceward.keys.signatures import CallReader

Function = Callable[..., object]


def decorated(
    guards: GuardFactory,
    function: Function,
    key: KeySource,
    fingerprint: KeySource | bool | None,
    name: str | None,
    options: Options,
) -> Function:
    """Return ``function`` guarded, as :meth:`Once.__call__` says."""
    guard, handler = guards.for_function(function, name, options)
    reader = CallReader(function, key, fingerprint, handler.claim)
    read = reader.under(guard.name, guards.class_check(name, guard, function))

    def key_of(*args: object, **kwargs: object) -> str:
        """Return the key in the ledger of a call with these arguments."""
        return read(args, kwargs)[0]

    if handler.is_async:

        @wraps(function)
        async def call_async(*args: object, **kwargs: object) -> object:
            found, print_ = read(args, kwargs)
            return await guard.call_async(found, print_, function, args, kwargs)

        wrapper: Function = call_async
    else:

        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            found, print_ = read(args, kwargs)
            return guard.call(found, print_, function, args, kwargs)

        wrapper = call
    wrapper.__signature__ = reader.signature  # type: ignore[attr-defined]  # inspect reads it
    wrapper.key_of = key_of  # type: ignore[attr-defined]  # documented at Once.__call__
    return wrapper

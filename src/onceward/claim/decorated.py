"""A guarded function: from a call's arguments to its key, and to its guard."""

from collections.abc import Callable
from functools import wraps

from onceward.claim.factory import GuardFactory
from onceward.claim.signatures import Inputs, KeySource
from onceward.core.policy import Options
from onceward.keys.ledger_keys import ledger_key

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
    read = Inputs(function, key, fingerprint, handler.parameter)
    prefix = guard.name
    check = guards.class_check(name, guard, function)
    if check is not None:
        read.before(check)

    def key_of(*args: object, **kwargs: object) -> str:
        """Return the key in the ledger of a call with these arguments."""
        return ledger_key(prefix, read.read(args, kwargs)[0])

    if handler.is_async:

        @wraps(function)
        async def call_async(*args: object, **kwargs: object) -> object:
            found, print_ = read.read(args, kwargs)
            return await guard.call_async(ledger_key(prefix, found), print_, function, args, kwargs)

        wrapper: Function = call_async
    else:

        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            found, print_ = read.read(args, kwargs)
            return guard.call(ledger_key(prefix, found), print_, function, args, kwargs)

        wrapper = call
    wrapper.__signature__ = read.signature  # type: ignore[attr-defined]  # inspect reads it
    wrapper.key_of = key_of  # type: ignore[attr-defined]  # documented at Once.__call__
    return wrapper

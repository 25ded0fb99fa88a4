"""Checks what a step is given, and reads how its function's results are stored. Nothing has run yet."""

from collections.abc import Callable
from weakref import WeakKeyDictionary

from onceward.claim.handler import Handler, describe
from onceward.claim.handler_codec import codec_of
from onceward.results.codec import Codec

_KNOWN: "WeakKeyDictionary[Callable[..., object], tuple[Handler, Codec]]" = WeakKeyDictionary()


def check_options(on_lapse: object, not_made: object) -> None:
    """Raise TypeError or ValueError if the options of a step are wrong."""
    if not callable(on_lapse) and (not isinstance(on_lapse, str) or on_lapse not in {"retry", "park"}):
        raise TypeError(f'on_lapse={on_lapse!r}: give "retry", "park", or a function that finds out what was made')
    if not isinstance(not_made, tuple) or not all(
        isinstance(one, type) and issubclass(one, Exception) for one in not_made
    ):
        raise TypeError(f"not_made={not_made!r}: give a tuple of exception classes")
    if not_made and on_lapse != "park":
        raise ValueError('not_made= is for steps with on_lapse="park"')


def known(function: Callable[..., object]) -> tuple[Handler, Codec]:
    """Return what is known of a step's function, and how its results are stored; raises TypeError if they cannot be."""
    if not callable(function):
        raise TypeError(f"{function!r} is no function: write claim.step(name, function, *arguments)")
    one = getattr(function, "__func__", function)
    try:
        found = _KNOWN.get(one)
        if found is None:
            found = _KNOWN[one] = _read(function)
    except TypeError:  # it takes no weak reference, or no hash, or its results cannot be stored
        found = _read(function)
    handler, codec = found
    if codec.resolve is not None:
        codec.resolve()
    return handler, codec


def _read(function: Callable[..., object]) -> tuple[Handler, Codec]:
    handler = describe(function)
    return handler, codec_of(function, handler)

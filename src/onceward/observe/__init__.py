"""Events of keys, and requests to the store. See docs/how-to/observing.md."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.observe.events import Event, Happening, Kind, Observer, StoreRequest
    from onceward.observe.events import about as about
    from onceward.observe.events import of_claiming as of_claiming
    from onceward.observe.events import of_memory as of_memory

__all__ = ["Event", "Happening", "Kind", "Observer", "StoreRequest"]
_INNER = {"about", "of_claiming", "of_memory"}


def __getattr__(name: str) -> object:
    if name not in _INNER.union(__all__):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    events = import_module("onceward.observe.events")  # a first call without observers does not pay for it
    globals()[name] = value = getattr(events, name)
    return value

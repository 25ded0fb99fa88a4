"""Events of keys, and requests to the store. See docs/observing.md."""

from onceward.observe.events import Event, Happening, Kind, Observer, StoreRequest

__all__ = ["Event", "Happening", "Kind", "Observer", "StoreRequest"]

"""Events of keys, and requests to the store. See docs/how-to/observing.md."""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.observe.events import Event, Happening, Kind, Observer, StoreRequest
    from onceward.observe.events import about as about
    from onceward.observe.events import of_claiming as of_claiming
    from onceward.observe.events import of_memory as of_memory

__all__ = ["Event", "Happening", "Kind", "Observer", "StoreRequest"]

# A first call without observers does not pay for them.
__getattr__, __dir__ = lazily(
    __name__,
    {".events": ("Event", "Happening", "Kind", "Observer", "StoreRequest", "about", "of_claiming", "of_memory")},
)

"""A store that reports its requests and their duration. Without an observer this costs nothing."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast
from weakref import ref

from onceward.core.clock import boottime
from onceward.observe.events import StoreRequest

Tell = Callable[[StoreRequest], object]


class Observed:
    """The base class of an observable store."""

    url: str
    _listeners: tuple[Tell, ...] = ()

    def observe(self, tell: Tell) -> None:
        """From now on call ``tell`` with each request, after its answer, in the request's thread."""
        self._listeners += (tell,)
        # Set on the object, so that the class's exchange need not check for observers.
        # Weak: a store that refers to itself would not close as soon as its last user drops it.
        store, kind, weak = cast("Any", self), cast("Any", type(self)), ref(self)
        store.exchange = partial(_exchange, weak, kind.exchange)
        store.exchange_async = partial(_exchange_async, weak, kind.exchange_async)

    def action(self, request: object) -> str:
        """Return what a request does, such as ``insert``."""
        return type(request).__name__.lower()

    def events_of(self, request: object, reply: object, seconds: float) -> Sequence[StoreRequest]:
        """Return the events of a request, its reply (or exception) and its duration in seconds."""
        error = type(reply).__name__ if isinstance(reply, Exception) else ""
        return [StoreRequest(self.url, self.action(request), seconds, error)]

    def tell(self, request: object, reply: object, seconds: float) -> None:
        """Report a request that was answered or failed."""
        for event in self.events_of(request, reply, seconds):
            for tell in self._listeners:
                tell(event)


def observe(store: Observed, tell: Tell) -> None:
    """Call ``tell`` with each request of ``store`` (:data:`onceward.stores.capabilities.OBSERVE`)."""
    store.observe(tell)


def _exchange(weak: Any, exchange: Any, request: object) -> object:
    store, began = weak(), boottime()
    try:
        reply: object = exchange(store, request)
    except Exception as error:
        store.tell(request, error, boottime() - began)
        raise
    store.tell(request, reply, boottime() - began)
    return reply


async def _exchange_async(weak: Any, exchange: Any, request: object) -> object:
    store, began = weak(), boottime()
    try:
        reply: object = await exchange(store, request)
    except Exception as error:
        store.tell(request, error, boottime() - began)
        raise
    store.tell(request, reply, boottime() - began)
    return reply

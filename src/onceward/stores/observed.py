"""A store that tells of its requests: each is timed at its exchange. A store that nobody observes pays nothing."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast
from weakref import ref

from onceward.core.clock import boottime
from onceward.observe.events import StoreRequest

Tell = Callable[[StoreRequest], object]


class Observed:
    """What a store inherits to be observed.

    Attributes:
        url: where the store is, for messages.
    """

    url: str
    _tells: tuple[Tell, ...] = ()

    def observe(self, tell: Tell) -> None:
        """Have ``tell`` called with each request from now on, in the thread that made it, after the answer has come."""
        self._tells += (tell,)
        # On the object, so that the class's own exchange need not ask whether anybody observes.
        store: Any = self
        store.exchange, store.exchange_async = _timed(self), _timed_async(self)

    def action(self, request: object) -> str:
        """Return what a request does, such as ``insert``."""
        return type(request).__name__.lower()

    def told_of(self, request: object, reply: object, seconds: float) -> Sequence[StoreRequest]:
        """Return what there is to tell of a request.

        Args:
            request: what was sent.
            reply: the answer, or the exception in its place.
            seconds: how long it took.
        """
        error = type(reply).__name__ if isinstance(reply, Exception) else ""
        return [StoreRequest(self.url, self.action(request), seconds, error)]

    def tell(self, request: object, reply: object, seconds: float) -> None:
        """Tell of a request that was answered, or failed."""
        for told in self.told_of(request, reply, seconds):
            for tell in self._tells:
                tell(told)


def observe(store: Observed, tell: Tell) -> None:
    """Have ``tell`` called with each request of ``store`` (:data:`onceward.stores.capabilities.OBSERVE`)."""
    store.observe(tell)


def _timed(store: Observed) -> Callable[[object], object]:
    # Weak: a store that refers to itself would be closed later than its last user lets it go.
    weak, exchange = ref(store), cast("Any", type(store)).exchange

    def timed(request: object) -> object:
        held = cast("Observed", weak())
        began = boottime()
        try:
            reply: object = exchange(held, request)
        except Exception as error:
            held.tell(request, error, boottime() - began)
            raise
        held.tell(request, reply, boottime() - began)
        return reply

    return timed


def _timed_async(store: Observed) -> Callable[[object], Awaitable[object]]:
    weak, exchange = ref(store), cast("Any", type(store)).exchange_async

    async def timed(request: object) -> object:
        held = cast("Observed", weak())
        began = boottime()
        try:
            reply: object = await exchange(held, request)
        except Exception as error:
            held.tell(request, error, boottime() - began)
            raise
        held.tell(request, reply, boottime() - began)
        return reply

    return timed

"""Passes events to the log and to observers."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from onceward.observe import logs

if TYPE_CHECKING:
    from onceward.observe.events import Event, Happening, Observer

_TELLING: ContextVar[bool] = ContextVar("onceward_telling", default=False)  # whether an observer is running here


class Observers:
    """The log, and the observers that were given.

    Each is called in the thread of the event, after the write to the ledger, while no lock is held. An exception is logged
    once for each kind of event, and changes nothing. Only interrupts (KeyboardInterrupt, SystemExit, a cancellation) go on.
    Observers are not told of an observer's own use of a ledger.

    Attributes:
        given: the observers, without the log.
        are_listening: tells whether anybody takes events below WARNING.
    """

    def __init__(self, given: "Iterable[Observer]" = ()) -> None:
        self.given = tuple(given)
        self.are_listening: Callable[[], bool] = (lambda: True) if self.given else logs.is_on
        self._failed: set[tuple[int, str]] = set()

    def tell(self, *events: "Event") -> None:
        """Tell observers of events, in order."""
        for event in events:
            logs.write(event)
            self.pass_on(event)

    def pass_on(self, event: "Happening") -> None:
        """Tell observers, but not the log. Requests to a store are not logged."""
        if not self.given or _TELLING.get():
            return
        try:
            _TELLING.set(True)
            for number, observer in enumerate(self.given):
                try:
                    observer(event)
                except Exception:
                    self._note_failure(number, event.kind)
        finally:
            _TELLING.set(False)

    def _note_failure(self, number: int, kind: str) -> None:
        if (number, kind) in self._failed:
            return
        self._failed.add((number, kind))
        with contextlib.suppress(Exception):
            logs.logger().exception(
                "the observer %r raised at %r. This changes nothing, and is told once; fix the observer",
                self.given[number],
                kind,
            )


class DeferredObservers(Observers):
    """Observers that are told at the end of a ``with`` block, because the block holds a lock."""

    def __init__(self, observers: Observers) -> None:
        super().__init__(observers.given)
        self._observers = observers
        self._waiting: deque[Event] = deque()

    def tell(self, *events: "Event") -> None:
        """Keep events until :meth:`__exit__`."""
        self._waiting += events

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        while self._waiting:
            try:
                event = self._waiting.popleft()
            except IndexError:  # another thread took it
                return
            self._observers.tell(event)


UNOBSERVED = Observers()  # only the log, for a guard without observers

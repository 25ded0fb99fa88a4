"""The one seam between what happens and who hears of it."""

import contextlib
import threading
from collections.abc import Callable, Iterable

from onceward.observe import logs
from onceward.observe.events import Event, Happening, Observer, StoreRequest

_HERE = threading.local()  # whose attribute `telling` is true while an observer runs in this thread


class Observers:
    """Who hears of events: the log, and the observers that were given.

    Each is called in the thread in which something happened, when no lock is held and the ledger has its write. What one
    raises is logged, once for each kind of event, and changes nothing; only interrupts (KeyboardInterrupt, SystemExit, a
    cancellation) go on. What an observer does to a ledger itself is not told to observers.

    Attributes:
        given: the observers, without the log.
        are_listening: tells whether an event that no person must look at would be heard.
    """

    def __init__(self, given: Iterable[Observer] = ()) -> None:
        self.given = tuple(given)
        self.are_listening: Callable[[], bool] = _always if self.given else logs.is_on
        self._failed: set[tuple[int, str]] = set()

    def tell(self, *events: Event) -> None:
        """Tell of events in their order."""
        for event in events:
            with contextlib.suppress(Exception):  # a handler of a log may raise, too
                logs.write(event)
            self._pass_on(event)

    def tell_request(self, request: StoreRequest) -> None:
        """Tell of a request to a store, which is not logged."""
        self._pass_on(request)

    def _pass_on(self, event: Happening) -> None:
        if not self.given or getattr(_HERE, "telling", False):
            return
        try:
            _HERE.telling = True
            for number, observer in enumerate(self.given):
                try:
                    observer(event)
                except Exception:
                    self._note_failure(number, event.kind)
        finally:
            _HERE.telling = False

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


def _always() -> bool:
    return True


UNOBSERVED = Observers()  # who hears of a guard that nobody gave observers to: the log

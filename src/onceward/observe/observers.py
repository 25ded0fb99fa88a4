"""Passes events to the log and to observers."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from onceward.core.arguments import check_hook
from onceward.observe import logs

if TYPE_CHECKING:
    from onceward.observe.events import Event, Happening, Observer
    from onceward.observe.spans import CallSpan, Comes

_TELLING: ContextVar[bool] = ContextVar("onceward_telling", default=False)  # whether an observer is running here


class Observers:
    """The log, and the observers that were given.

    Each is called in the thread of the event, after the write to the ledger, while no lock is held. An exception is logged
    once for each kind of event, and changes nothing. Only interrupts (KeyboardInterrupt, SystemExit, a cancellation) go on.
    Observers are not told of an observer's own use of a ledger.

    Attributes:
        given: the observers, without the log.
        are_listening: tells whether anybody takes events below WARNING.
        spans: the observer that makes spans (``spans.py``), or None.

    Raises:
        ValueError: two of them make spans.
    """

    def __init__(self, given: "Iterable[Observer]" = ()) -> None:
        self.given = tuple(given)
        self.are_listening: Callable[[], bool] = (lambda: True) if self.given else logs.is_on
        self._failed: set[tuple[int, str]] = set()
        makers: list[Any] = [one for one in self.given if hasattr(one, "begin")]
        if len(makers) > 1:
            raise ValueError(f"observe=: {makers[0]!r} and {makers[1]!r} both make spans. Give one of them")
        self.spans: Any = makers[0] if makers else None
        self._maker = self.given.index(makers[0]) if makers else 0

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

    def begin(self, name: str, key: str, comes: "Comes | None" = None) -> "CallSpan | None":
        """Begin the span of a call if somebody makes spans; ``comes`` tells what the call came with."""
        spans = self.spans
        if spans is None or _TELLING.get():
            return None
        return self._begin(lambda: spans.begin(name, key, None if comes is None else comes()))

    def begin_step(self, name: str) -> "CallSpan | None":
        """Begin the span of a step, within the current one."""
        spans = self.spans
        return None if spans is None else self._begin(lambda: spans.begin_step(name))

    def headers(self) -> "Mapping[str, str]":
        """Return the headers that carry the current trace to a downstream."""
        if self.spans is None:
            return {}
        try:
            return cast("Mapping[str, str]", self.spans.headers())
        except Exception:
            self._note_failure(self._maker, "headers")
            return {}

    def flush(self) -> None:
        """Call ``flush`` of the observers that have one: a batch or an invocation has ended."""
        for number, observer in enumerate(self.given):
            if (flush := getattr(observer, "flush", None)) is not None:
                try:
                    flush()
                except Exception:
                    self._note_failure(number, "flush")

    def _begin(self, begin: Callable[[], object]) -> "CallSpan | None":
        from onceward.observe.spans import CallSpan

        try:
            return CallSpan(begin(), partial(self._note_failure, self._maker))
        except Exception:
            self._note_failure(self._maker, "begin")
            return None

    def _note_failure(self, number: int, kind: str) -> None:
        if (number, kind) in self._failed:
            return
        self._failed.add((number, kind))
        with contextlib.suppress(Exception):
            logs.logger().exception(
                "the observer %r raised at %r. Nothing else is affected. Fix the observer. This is logged once",
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


def checked_observers(observe: "Iterable[Observer]") -> "list[Observer]":
    """Return the observers; raises TypeError unless all are plain callables."""
    if callable(observe):
        raise TypeError(f"observe={observe!r}: give a list, as in observe=[print]")
    observers = list(observe)
    for one in observers:
        check_hook("observe", one)
    return observers

"""How an observer follows a call while it runs: a span that is current while the handler runs.

An observer that makes spans has these methods, as :class:`onceward.observe.otel_traces.OtelTraces` has:

- ``begin(name, key, incoming)`` begins the span of a call, before its key is asked for.
- ``begin_step(name)`` begins the span of a step, within the current one.
- ``headers()`` returns the headers that carry the current trace to a downstream.

A span has ``trace``, its W3C traceparent or None, which the record keeps, and these methods: ``note(event)`` notes an event of its key,
``link(trace)`` links it to an earlier run, ``enter()`` makes it current in this context (also again inside), ``leave()`` makes current what
was so before, and ``end(error)`` ends it, with the error if no event told it.

An observer may also have ``flush``, which is called after each batch and each invocation of a Lambda handler.
"""

import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple

from onceward.core.steps import Bid
from onceward.observe.events import Event


class Incoming(NamedTuple):
    """What a call came with: a message or a request.

    Attributes:
        headers: returns the value of a header or message attribute, such as ``traceparent``, or None.
        source: where a message comes from, such as ``aws:sqs``; None for a request.
        destination: the queue or topic, if it is known.
        id: the message's id.
    """

    headers: Callable[[str], object]
    source: str | None = None
    destination: str | None = None
    id: str | None = None


# https://www.w3.org/TR/trace-context/#traceparent-header-field-values. Stores print it into JSON as it is.
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
Comes = Callable[[], Incoming]  # only asked when somebody makes spans


class CallSpan:
    """A span whose errors change nothing: they are logged once, as those of observers are."""

    __slots__ = ("_depth", "_ended", "_failed", "_span", "trace")

    def __init__(self, span: Any, failed: Callable[[str], None]) -> None:
        self._span = span
        self._failed = failed
        self._depth = 0  # how often it was entered and not left
        self._ended = False
        trace = span.trace
        self.trace = trace if trace is not None and _TRACEPARENT.fullmatch(trace) else None

    def on(self, bid: Bid) -> Bid:
        """Return a bid whose record keeps this trace."""
        return bid._replace(provenance=bid.provenance._replace(trace=self.trace))

    def note(self, event: Event) -> None:
        """Note an event of its key."""
        if not self._ended:
            self._do("note", event, kind=event.kind)

    def link(self, trace: str | None) -> None:
        """Link it to an earlier run, if that had a trace."""
        if trace is not None and trace != self.trace:
            self._do("link", trace)

    def enter(self) -> None:
        """Make it current in this context."""
        self._depth += 1
        self._do("enter")

    def leave(self, *, over: bool = False) -> None:
        """Make current what was so before; end it if its call is ``over``."""
        self._depth -= 1
        self._do("leave")
        if over:
            self.over()

    def _do(self, what: str, *arguments: object, kind: str | None = None) -> None:
        try:
            getattr(self._span, what)(*arguments)
        except Exception:
            self._failed(kind or what)

    def over(self) -> None:
        """End it, unless its handler still runs: then :meth:`leave` ends it."""
        if self._depth <= 0:
            self.end()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """End it."""
        if not self._ended:
            self._ended = True
            self._do("end", error)

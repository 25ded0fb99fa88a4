"""Traces for OpenTelemetry, with the extra ``otel``: a span for each guarded call and each step.

The attributes of messages are those of OpenTelemetry's semantic conventions for messaging, version 1.37.
"""

from collections.abc import Mapping
from typing import Any, Final

from onceward.observe.events import Event
from onceward.observe.json_lines import plain_error
from onceward.observe.spans import Incoming

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:  # pragma: no cover - the extra is installed where tests run
    raise ImportError("traces for OpenTelemetry need its SDK: pip install 'onceward[otel]'") from missing

SCOPE: Final = "onceward"
_SYSTEMS: Final = {"aws:sqs": "aws_sqs", "aws:sns": "aws.sns", "aws:kafka": "kafka", "SelfManagedKafka": "kafka"}
_FAILED: Final = frozenset({"failed", "interrupted", "lost", "not_recorded", "mismatch"})  # an error of the call
_WITHIN: Final = frozenset(
    {"renewed", "settled_late", "step", "sent", "send_failed", "refused"}
)  # in the middle of a call, not its outcome
_HERE: Final = context.create_key("onceward-span")  # the innermost of ours in a context
_W3C: Final = TraceContextTextMapPropagator()


class OtelTraces:
    """An observer that makes spans with OpenTelemetry: ``Once(url, observe=[OtelTraces()])``.

    A span begins before its key is asked for, and is current while the handler runs. The record keeps its trace context, so
    the span of a duplicate has a link to the run that answered it. A message's span is a child of the message's own
    ``traceparent``, with a link to the span that was current. Elsewhere it is a child of the current span.

    Args:
        provider: by default the global one.
        keys: whether spans have the attribute ``onceward.key``. Switch it off if your keys are private.
    """

    def __init__(self, provider: TracerProvider | None = None, *, keys: bool = True) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._keys = keys

    def __call__(self, event: object) -> None:
        """Take no event: spans are told of their own."""

    def begin(self, name: str, key: str | None, incoming: Incoming | None) -> "OtelSpan":
        """Begin the span of a call."""
        attributes: dict[str, str] = {"onceward.handler": name}
        if self._keys and key is not None:
            attributes["onceward.key"] = key
        parent: Context | None = None
        links: list[Link] = []
        kind = SpanKind.INTERNAL
        if incoming is not None:
            parent, links = _came(incoming)
            if incoming.source is not None:
                kind = SpanKind.CONSUMER
                attributes |= _of_message(incoming)
        titled = f"process {attributes.get('messaging.destination.name', name)}" if kind is SpanKind.CONSUMER else name
        return OtelSpan(self._tracer.start_span(titled, parent, kind, attributes, links), keys=self._keys)

    def begin_step(self, name: str) -> "OtelSpan":
        """Begin the span of a step, within the current one."""
        return OtelSpan(self._tracer.start_span(f"step {name}", attributes={"onceward.step": name}), keys=self._keys)

    def headers(self) -> Mapping[str, str]:
        """Return the headers that carry the current trace to a downstream."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier


class OtelSpan:
    """A span of OpenTelemetry, as ``observe/spans.py`` says."""

    __slots__ = ("_before", "_keys", "_span", "trace")

    def __init__(self, span: trace.Span, *, keys: bool) -> None:
        self._span = span
        self._keys = keys
        self._before: list[Context] = []
        held = span.get_span_context()
        self.trace = f"00-{held.trace_id:032x}-{held.span_id:016x}-{held.trace_flags:02x}" if held.is_valid else None

    def note(self, event: Event) -> None:
        """Note an event of the call."""
        span, kind = self._span, event.kind
        if kind == "claimed" or not span.is_recording():  # its end tells the same
            return
        attributes: dict[str, Any] = {}
        if event.attempt is not None:
            attributes["onceward.attempt"] = event.attempt
        if event.fence is not None:
            attributes["onceward.fence"] = event.fence
        if event.route is not None:
            attributes["http.route"] = event.route.partition(" ")[2] or event.route
        if kind in _WITHIN:
            if kind == "step" and not event.again:  # it has a span of its own
                return
            span.add_event(f"onceward.{kind}", None if event.step is None else {"onceward.step": event.step})
        elif kind == "taken_over":
            attributes["onceward.taken_over"] = True
        else:
            attributes["onceward.outcome"] = kind
            if event.error is not None:
                attributes["error.type"] = _type(event.error)
            if kind in _FAILED:
                text = None if event.error is None else plain_error(event.error, keys=self._keys)
                span.set_status(Status(StatusCode.ERROR, text))
        span.set_attributes(attributes)
        if event.trace is not None and event.trace != self.trace:
            self.link(event.trace)

    def link(self, trace: str) -> None:
        """Link it to the run with this traceparent."""
        held = read_traceparent(trace)
        if held is not None:
            self._span.add_link(held)

    def enter(self) -> None:
        """Make it current."""
        before = context.get_current()
        self._before.append(before)
        context.attach(context.set_value(_HERE, self, trace.set_span_in_context(self._span, before)))

    def leave(self) -> None:
        """Make current what was so before.

        A coroutine may be closed in another task, and a block be left in another thread: what is current there stays. A token
        would not do, because the context may also be a copy.
        """
        before = self._before.pop()
        if context.get_value(_HERE) is self:
            context.attach(before)

    def end(self, error: BaseException | None) -> None:
        """End it."""
        if error is not None and self._span.is_recording():
            text = plain_error(error, keys=self._keys) if isinstance(error, Exception) else type(error).__name__
            self._span.set_status(Status(StatusCode.ERROR, text))
            self._span.set_attribute("error.type", _type(error))
        self._span.end()


def read_traceparent(text: str) -> SpanContext | None:
    """Return the span that a record's traceparent names; None if it is not valid."""
    context = _W3C.extract({"traceparent": text}, Context())
    held = trace.get_current_span(context).get_span_context()
    return held if held.is_valid else None


class _Headers(Getter[Incoming]):
    """Reads what a message or request came with."""

    def get(self, carrier: Incoming, key: str) -> list[str] | None:
        value = carrier.headers(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Incoming) -> list[str]:
        return []


_HEADERS: Final = _Headers()


def _came(incoming: Incoming) -> tuple[Context | None, list[Link]]:
    """Return the parent of a span, None for the current one, and its links."""
    here = trace.get_current_span().get_span_context()
    if incoming.source is None and here.is_valid:  # the server's own span is already a child of the request's
        return None, []
    context = propagate.extract(incoming, getter=_HEADERS)
    theirs = trace.get_current_span(context).get_span_context()
    if not theirs.is_valid or theirs == here:
        return None, []
    return context, [Link(here)] if here.is_valid and here.trace_id != theirs.trace_id else []


def _of_message(incoming: Incoming) -> dict[str, str]:
    source = incoming.source or ""
    attributes = {
        "messaging.system": _SYSTEMS.get(source, source),
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": incoming.destination,
        "messaging.message.id": incoming.id,
    }
    return {name: value for name, value in attributes.items() if value}


def _type(error: BaseException | str) -> str:
    return "_OTHER" if isinstance(error, str) else f"{type(error).__module__}.{type(error).__qualname__}"

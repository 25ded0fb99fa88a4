"""One trace leads from the sender through a queue to the worker, and to the replay."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from onceward import Once
from onceward.aws import SqsWorker, send
from onceward.observe.otel_traces import OtelTraces
from servers.needs import numbers

NAMES = numbers()


def test_one_trace_leads_from_send_through_queue_and_worker_to_the_replay(front, ministack, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", front.url)
    queue, ended, tracing = ministack.queue(f"traced-{next(NAMES)}"), InMemorySpanExporter(), TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(ended))
    once, web = Once("memory:", observe=[OtelTraces(tracing)]), tracing.get_tracer("web")

    def charge(message):
        with tracing.get_tracer("app").start_as_current_span("charge"):
            return message

    for number in (1, 2):
        with web.start_as_current_span(f"request {number}"):
            send(once, queue, {"order": 7}, key=number)
        SqsWorker(once, queue, charge, key="message.order", name="charges", wait=1).run(until_empty=True)
    spans = {}
    for span in ended.get_finished_spans():
        spans.setdefault(span.name, []).append(span)
    name = queue.rpartition("/")[2]
    requests = [spans["request 1"][0], spans["request 2"][0]]
    ran, replayed = processed = spans[f"process {name}"]
    for request, sending, process in zip(requests, spans["send"], processed, strict=True):
        assert sending.parent.span_id == request.context.span_id
        assert process.parent.span_id == sending.context.span_id
        assert process.context.trace_id == sending.context.trace_id == request.context.trace_id
    assert [span.attributes["onceward.outcome"] for span in processed] == ["completed", "replayed"]
    assert [span.parent.span_id for span in spans["charge"]] == [ran.context.span_id]
    (link,) = replayed.links
    assert (link.context.trace_id, link.context.span_id) == (ran.context.trace_id, ran.context.span_id)
    assert (ran.attributes["messaging.destination.name"], ran.kind) == (name, SpanKind.CONSUMER)

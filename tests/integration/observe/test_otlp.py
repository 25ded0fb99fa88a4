"""Traces as they arrive at a real OTLP receiver: from the sender through a queue to the worker, and to the replay."""

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from onceward import Once
from onceward.aws import SqsWorker, send
from onceward.observe.otel_traces import OtelTraces
from servers.needs import numbers
from web.otlp import OtlpReceiver

NAMES = numbers()


@pytest.fixture
def receiver():
    receiver = OtlpReceiver()
    yield receiver
    receiver.stop()


@pytest.fixture
def tracing(receiver):
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    yield provider
    provider.shutdown()


def attributes(span):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_one_trace_leads_from_send_through_queue_and_worker_to_the_replay(
    receiver, tracing, front, ministack, monkeypatch
):
    """Two messages of one key: the second is a replay, in the trace of its own send, with a link to the run."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", front.url)
    queue = ministack.queue(f"traced-{next(NAMES)}")
    once = Once("memory:", observe=[OtelTraces(tracing)])
    web = tracing.get_tracer("web")

    def charge(message):
        with tracing.get_tracer("app").start_as_current_span("charge"):
            return message

    for number in (1, 2):
        with web.start_as_current_span(f"request {number}"):
            send(once, queue, {"order": 7}, key=number)
        SqsWorker(once, queue, charge, key="message.order", name="charges", wait=1).run(until_empty=True)
    tracing.force_flush()
    spans = {}
    for span in receiver.spans:
        spans.setdefault(span.name, []).append(span)
    requests = [spans["request 1"][0], spans["request 2"][0]]
    ran, replayed = processed = spans[f"process {queue.rpartition('/')[2]}"]
    sent = spans["send"]
    for request, sending, process in zip(requests, sent, processed, strict=True):
        assert sending.parent_span_id == request.span_id
        assert process.parent_span_id == sending.span_id
        assert process.trace_id == sending.trace_id == request.trace_id
    assert [attributes(span)["onceward.outcome"] for span in processed] == ["completed", "replayed"]
    assert [span.parent_span_id for span in spans["charge"]] == [ran.span_id]
    assert [(link.trace_id, link.span_id) for link in replayed.links] == [(ran.trace_id, ran.span_id)]
    assert attributes(ran)["messaging.destination.name"] == queue.rpartition("/")[2]
    assert ran.kind == ran.SPAN_KIND_CONSUMER

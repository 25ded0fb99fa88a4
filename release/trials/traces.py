"""Traces and metrics of a guarded call."""

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from onceward import Once
from onceward.observe.otel_metrics import OtelMetrics
from onceward.observe.otel_traces import OtelTraces

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))
once = Once("sqlite:///traces.db", observe=[OtelTraces(), OtelMetrics()])
once.run("k", int)
assert spans.get_finished_spans()
assert reader.get_metrics_data() is not None

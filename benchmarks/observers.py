"""What observers cost a call, over nobody observing and over an observer that does nothing.

Run: python benchmarks/observers.py [CALLS]
Goals, over an observer that does nothing: Prometheus 3 µs, OpenTelemetry's metrics 15, its traces 40.

A call is a first call on a ledger in memory: two events of its key, and two requests. Spans are dropped when
they end, and metrics are never exported, because exporting happens beside the calls.
"""

import os
import sys
from collections.abc import Callable, Sequence

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from prometheus_client import CollectorRegistry

from measure import Cost, interleaved, table, timed
from onceward import Once
from onceward.observe import Happening
from onceward.observe.cloudwatch import EmbeddedMetrics
from onceward.observe.json_lines import JsonLines
from onceward.observe.otel_metrics import OtelMetrics
from onceward.observe.otel_traces import OtelTraces
from onceward.observe.prometheus import PrometheusMetrics

CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
ROUNDS = 15


def nothing(event: Happening) -> None:
    """Observe nothing."""


def case(name: str, observers: Sequence[Callable[[Happening], object]]) -> Callable[[int], Cost]:
    once = Once("memory:", observe=observers)

    @once(key="number", name="bench")
    def handle(number: int) -> int:
        return number

    def calls(turn: int) -> None:
        for number in range(turn * CALLS, (turn + 1) * CALLS):
            handle(number)

    return lambda turn: timed(lambda: calls(turn), CALLS)


def main() -> None:
    tracing = TracerProvider()
    tracing.add_span_processor(SpanProcessor())  # the class itself drops spans
    with open(os.devnull, "w", encoding="utf-8") as sink:
        observers: dict[str, list[Callable[[Happening], object]]] = {
            "nobody": [],
            "nothing": [nothing],
            "PrometheusMetrics": [PrometheusMetrics(CollectorRegistry())],
            "OtelMetrics": [OtelMetrics(MeterProvider([InMemoryMetricReader()]))],
            "OtelTraces": [OtelTraces(tracing)],
            "OtelTraces and OtelMetrics": [
                OtelTraces(tracing),
                OtelMetrics(MeterProvider([InMemoryMetricReader()])),
            ],
            "EmbeddedMetrics": [EmbeddedMetrics(stream=sink)],
            "JsonLines": [JsonLines(sink)],
        }
        costs = interleaved({name: case(name, given) for name, given in observers.items()}, ROUNDS)
    nobody, null = costs["nobody"].cpu, costs["nothing"].cpu
    rows = [(name, cost.cpu, cost.cpu - nobody, cost.cpu - null) for name, cost in costs.items()]
    load = os.getloadavg()[0]
    head = ["observer", "CPU", "over nobody", "over nothing"]
    table(f"µs of CPU a call, median of {ROUNDS} rounds of {CALLS} calls, load {load:.1f}", head, rows)


if __name__ == "__main__":
    main()

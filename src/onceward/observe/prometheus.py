"""Metrics for Prometheus, with the extra ``prometheus``."""

from collections.abc import Iterator
from typing import Any

from onceward.core.arguments import check_type
from onceward.observe.measures import GAUGES, MEASURES, Cell, CellMeter, Measure, ReadsGauges

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError as missing:  # pragma: no cover - the extra is installed where tests run
    raise ImportError("metrics for Prometheus need prometheus-client: pip install 'onceward[prometheus]'") from missing


class PrometheusMetrics(CellMeter):
    """An observer whose metrics Prometheus scrapes: ``Once(url, observe=[PrometheusMetrics()])``.

    One observer can serve several Onces. Its metrics are those of this process. Give each process its own port:
    prometheus-client's mode for many processes does not know them.

    Args:
        registry: where its metrics appear; by default prometheus-client's own.

    Raises:
        ValueError: the registry has another one already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__()
        registry.register(self)

    def describe(self) -> Iterator[Any]:
        """Return the metrics without values, so that a registry refuses a second set."""
        return map(_family, MEASURES)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics with their values now."""
        for measure in MEASURES:
            family = _family(measure)
            for labels, cell in self.of(measure):
                if isinstance(family, CounterMetricFamily):
                    family.add_metric(labels, cell.read().sum)
                else:
                    family.add_metric(labels, *_buckets(measure, cell))
            yield family


class PrometheusLedger:
    """The gauges of a ledger, such as its parked keys: ``PrometheusLedger(LedgerGauges(once))``.

    Args:
        gauges: what reads them, when Prometheus scrapes.
        registry: where they appear.
    """

    def __init__(self, gauges: ReadsGauges, registry: CollectorRegistry = REGISTRY) -> None:
        check_type("PrometheusLedger(gauges)", gauges, "read", "LedgerGauges(once)")
        self._gauges = gauges
        registry.register(self)

    def describe(self) -> Iterator[Any]:
        """Return the metrics without values: registering does not ask the ledger."""
        return map(_family, GAUGES)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics."""
        read = self._gauges.read()
        for gauge in GAUGES:
            family = _family(gauge)
            for labels, value in read.get(gauge, {}).items():
                family.add_metric(labels, value)
            yield family


def _family(measure: Measure) -> Any:
    kind: Any = HistogramMetricFamily if measure.bounds else CounterMetricFamily
    name = measure.name.replace(".", "_") + ("_seconds" if measure.unit == "s" else "")
    return (GaugeMetricFamily if measure in GAUGES else kind)(name, measure.help, labels=measure.labels)


def _buckets(measure: Measure, cell: Cell) -> tuple[list[tuple[str, float]], float]:
    spread, total = cell.read(), 0
    buckets = []
    for upper, count in zip([*map(str, measure.bounds), "+Inf"], spread.counts, strict=True):
        total += count
        buckets.append((upper, float(total)))
    return buckets, spread.sum

"""Metrics for Prometheus, with the extra ``prometheus``."""

from collections.abc import Iterator

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

    def describe(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        """Yield the metrics without values, so that a registry refuses a second set."""
        for measure in MEASURES:
            yield _family(measure)

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
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

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics without values: registering does not ask the ledger."""
        for gauge in GAUGES:
            yield GaugeMetricFamily(_name(gauge), gauge.help, labels=gauge.labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics."""
        read = self._gauges.read()
        for gauge in GAUGES:
            family = GaugeMetricFamily(_name(gauge), gauge.help, labels=gauge.labels)
            for labels, value in read.get(gauge, {}).items():
                family.add_metric(labels, value)
            yield family


def _name(measure: Measure) -> str:
    return measure.name.replace(".", "_") + ("_seconds" if measure.unit == "s" else "")


def _family(measure: Measure) -> CounterMetricFamily | HistogramMetricFamily:
    kind = HistogramMetricFamily if measure.bounds else CounterMetricFamily
    return kind(_name(measure), measure.help, labels=measure.labels)


def _buckets(measure: Measure, cell: Cell) -> tuple[list[tuple[str, float]], float]:
    spread, total = cell.read(), 0
    buckets = []
    for upper, count in zip([*map(str, measure.bounds), "+Inf"], spread.counts, strict=True):
        total += count
        buckets.append((upper, float(total)))
    return buckets, spread.sum

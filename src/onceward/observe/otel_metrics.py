"""Metrics for OpenTelemetry, with the extra ``otel``."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from onceward.core.arguments import check_type
from onceward.observe.measures import GAUGES, MEASURES, Cell, CellMeter, Measure, ReadsGauges, Record

try:
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation, get_meter_provider
except ImportError as missing:  # pragma: no cover - the extra is installed where tests run
    raise ImportError("metrics for OpenTelemetry need its SDK: pip install 'onceward[otel]'") from missing

SCOPE: Final = "onceward"
_SUM: Final = lambda cell: cell.read().sum
_COUNT: Final = lambda cell: sum(cell.read().counts)


class OtelMetrics(CellMeter):
    """An observer that measures with OpenTelemetry: ``Once(url, observe=[OtelMetrics()])``.

    The SDK's own counters and histograms take 6 µs a value. So counters are read from memory when they are exported, and only
    the durations of handlers, of calls and of waits are histograms. It exports the number and the seconds of requests to the
    ledger, and the shortest time that was left of a lease.

    Args:
        provider: by default the global one; set it before.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        super().__init__()
        meter = (provider or get_meter_provider()).get_meter(SCOPE)
        self._histograms: dict[Measure, Histogram] = {}
        for measure in MEASURES:
            name, unit, text = measure.name, measure.unit, measure.help
            if not measure.bounds:
                meter.create_observable_counter(name, [partial(self._read, measure, _SUM)], unit, text)
            elif not measure.often:
                self._histograms[measure] = meter.create_histogram(
                    name, unit, text, explicit_bucket_boundaries_advisory=measure.bounds
                )
            elif measure.labels == ("handler",):
                meter.create_observable_gauge(
                    f"{name}.min", [partial(self._read, measure, Cell.take_least)], unit, f"{text}: the least"
                )
            else:
                meter.create_observable_counter(
                    f"{name}.sum", [partial(self._read, measure, _SUM)], unit, f"{text}: seconds"
                )
                meter.create_observable_counter(
                    f"{name}.count", [partial(self._read, measure, _COUNT)], "{request}", text
                )

    def record_of(self, measure: Measure, labels: tuple[str, ...]) -> Record:
        """Return what takes the values of a measure with these labels."""
        histogram = self._histograms.get(measure)
        if histogram is None:
            return super().record_of(measure, labels)
        return partial(histogram.record, attributes=_attributes(measure, labels))

    def _read(self, measure: Measure, read: Callable[[Any], float | None], _: CallbackOptions) -> Iterator[Observation]:
        for labels, cell in self.of(measure):
            if (value := read(cell)) is not None:
                yield Observation(value, _attributes(measure, labels))


def observe_ledger(gauges: ReadsGauges, provider: MeterProvider | None = None) -> None:
    """Export the gauges of a ledger, such as its parked keys. They are read when metrics are exported.

    Args:
        gauges: what reads them.
        provider: by default the global one.
    """
    check_type("observe_ledger(gauges)", gauges, "read", "LedgerGauges(once)")
    meter = (provider or get_meter_provider()).get_meter(SCOPE)

    def reading(measure: Measure) -> Callable[[CallbackOptions], Sequence[Observation]]:
        return lambda _: [
            Observation(value, _attributes(measure, labels)) for labels, value in gauges.read().get(measure, {}).items()
        ]

    for gauge in GAUGES:
        meter.create_observable_gauge(gauge.name, [reading(gauge)], gauge.unit, gauge.help)


def _attributes(measure: Measure, labels: tuple[str, ...]) -> dict[str, str]:
    return {f"onceward.{name}": value for name, value in zip(measure.labels, labels, strict=True)}

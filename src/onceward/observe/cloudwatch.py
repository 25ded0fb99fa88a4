"""Metrics for CloudWatch in its embedded metric format: lines of the log, which CloudWatch reads. No agent, no request.

The format is that of "Specification: Embedded metric format" in the CloudWatch user guide.
"""

import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TextIO

import msgspec

from onceward.observe.events import Happening
from onceward.observe.measures import CALLS, KEYS, MEASURES, OUTBOX_AGE, Measure, Meter, ReadsGauges, Record

_MOST: Final = 100  # values of one metric in a line (the specification, "Target members")
_LONGEST: Final = 250  # characters of a dimension's value that are kept; CloudWatch takes 1,024 bytes
_ENCODER: Final = msgspec.json.Encoder()


class EmbeddedMetrics(Meter):
    """An observer that writes one line for each invocation or batch: ``Once(url, observe=[EmbeddedMetrics()])``.

    The dimensions are ``service`` and ``handler``, and ``service`` alone. Lambda handlers and batches of onceward write the line
    when they end. Handlers of your own call :meth:`flush` at their end.

    Args:
        namespace: of the metrics.
        service: the value of that dimension; by default the Lambda function's name.
        stream: where the lines go; None is the standard output at that time.
    """

    def __init__(
        self,
        namespace: str = "onceward",
        service: str | None = None,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._namespace = namespace
        self._service = service or os.environ.get("AWS_LAMBDA_FUNCTION_NAME") or "onceward"
        self._stream = stream
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, list[float]]] = defaultdict(dict)  # by handler, "" is the ledger, and metric
        self._full = False

    def __reduce__(self) -> tuple[object, ...]:
        return EmbeddedMetrics, (self._namespace, self._service, self._stream)

    def __call__(self, event: Happening) -> None:
        """Measure an event."""
        super().__call__(event)
        if self._full:
            self.flush()

    def record_of(self, measure: Measure, labels: tuple[str, ...]) -> Record:
        """Return what takes the values of a measure with these labels."""
        handler = labels[0] if measure.labels[0] == "handler" else ""
        # CALLS has one metric for each outcome instead: a line has one value of each dimension.
        name = _camel(labels[1]) if measure is CALLS else metric_of(measure)
        return partial(self._add, handler, name, counts=not measure.bounds)

    def _add(self, handler: str, name: str, value: float, *, counts: bool) -> None:
        with self._lock:
            values = self._values[handler].setdefault(name, [])
            if counts and values:
                values[0] += value
            else:
                values.append(value)
                self._full = self._full or len(values) == _MOST

    def flush(self) -> None:
        """Write what was measured since the last line: a line for each handler."""
        with self._lock:
            measured, self._values, self._full = self._values, defaultdict(dict), False
        ledger, *more = _parts(measured.pop("", {}))
        lines = []
        for handler, metrics in measured.items():
            for part in _parts(metrics):
                lines.append(self._line(handler, part, ledger))
                ledger = {}
        lines += [self._line("", {}, part) for part in (ledger, *more) if part]
        self._write(lines)

    def ledger(self, gauges: ReadsGauges) -> None:
        """Write a line of a ledger's gauges, such as its parked keys: call it in a function that a schedule invokes."""
        read = gauges.read(patience=None)
        metrics = {f"Keys{_camel(labels[0])}": [value] for labels, value in read.get(KEYS, {}).items()}
        if OUTBOX_AGE in read:
            metrics["OutboxAge"] = list(read[OUTBOX_AGE].values())
        self._write([self._line("", {}, metrics)] if metrics else [])

    def _write(self, lines: Sequence[object]) -> None:
        if lines:
            stream = sys.stdout if self._stream is None else self._stream
            stream.write(_ENCODER.encode_lines(lines).decode())
            stream.flush()

    def _line(
        self, handler: str, metrics: Mapping[str, list[float]], ledger: Mapping[str, list[float]]
    ) -> dict[str, object]:
        directives = [
            {
                "Namespace": self._namespace,
                "Dimensions": dimensions,
                "Metrics": [{"Name": name, "Unit": "Seconds" if name in _SECONDS else "Count"} for name in part],
            }
            for dimensions, part in (([["service", "handler"], ["service"]], metrics), ([["service"]], ledger))
            if part
        ]
        values = {name: one if len(one) > 1 else one[0] for name, one in (*metrics.items(), *ledger.items())}
        names = {"service": self._service} | ({"handler": handler[:_LONGEST]} if handler else {})
        return {"_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": directives}, **names, **values}


def _parts(metrics: Mapping[str, list[float]]) -> Iterator[dict[str, list[float]]]:
    """Yield the values in parts that a line can have: threads may have measured more before one of them writes."""
    longest = max(map(len, metrics.values()), default=1)
    for at in range(0, longest, _MOST):
        yield {name: part for name, values in metrics.items() if (part := values[at : at + _MOST])}


def metric_of(measure: Measure) -> str:
    """Return the name of a metric: HandlerDuration of onceward.handler.duration."""
    return _camel(measure.name.removeprefix("onceward."))


def _camel(words: str) -> str:
    return re.sub(r"[._]", "", words.title())


_SECONDS: Final = frozenset({"OutboxAge", *(metric_of(measure) for measure in MEASURES if measure.unit == "s")})


# --- the alarms of the runbook: observability/cloudwatch-alarms.yaml and `onceward init --print` are made from this table ---
NAMESPACE: Final = "onceward"


class Alarm(NamedTuple):
    """One alarm. It fires when its statistic is above ``above`` in ``late`` of ``periods`` periods of ``period`` seconds."""

    name: str
    says: str
    metric: str
    above: float = 0
    period: int = 900
    periods: int = 1
    late: int = 1
    statistic: str = "Sum"


ALARMS: Final = (
    Alarm("ParkedKeys", "Messages were given up and wait for a person: onceward ls --status PARKED.", "Parkings"),
    Alarm(
        "LapsedKeysStand",
        "Keys have had no worker for 15 minutes: onceward ls --status LAPSED.",
        "KeysLapsed",
        period=300,
        periods=3,
        late=3,
        statistic="Minimum",
    ),
    Alarm("TakeoversJump", "Workers vanish, or the lease is too short for the handler.", "Takeovers", above=3),
    Alarm(
        "LeasesLost", "A handler loses its lease while it runs, so its effect may be made twice.", "LeasesLost", above=1
    ),
    Alarm(
        "SettlingLags",
        "Ends of claims are recorded late. The ledger is away or overloaded.",
        "SettlingDelay",
        above=5,
        period=300,
        periods=2,
        late=2,
        statistic="p90",
    ),
    Alarm("NotRecorded", "Ends of claims could not be recorded. Their handlers run again.", "NotRecorded", period=300),
    Alarm(
        "OutboxAges",
        "Messages wait to be sent. The target is away, or nothing relays.",
        "OutboxAge",
        above=300,
        period=300,
        periods=2,
        late=2,
        statistic="Maximum",
    ),
    Alarm(
        "OutboxRefused", "A target refuses messages for good. They stay in their records.", "OutboxRefused", period=300
    ),
    Alarm(
        "Throttles",
        "The ledger is throttled. Raise the table's capacity, or switch it to on-demand.",
        "LedgerThrottles",
        above=30,
        period=300,
        periods=3,
        late=2,
    ),
)


def resource(
    alarm: Alarm, name: object, namespace: object, dimensions: Mapping[str, object], topic: object
) -> dict[str, Any]:
    """Return one alarm's resource. ``topic`` is the SNS topic that is told when it begins and when it ends."""
    statistic = "ExtendedStatistic" if alarm.statistic.startswith("p") else "Statistic"
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": name,
            "AlarmDescription": alarm.says,
            "Namespace": namespace,
            "MetricName": alarm.metric,
            "Dimensions": [{"Name": of, "Value": value} for of, value in dimensions.items()],
            statistic: alarm.statistic,
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": alarm.above,
            "Period": alarm.period,
            "EvaluationPeriods": alarm.periods,
            "DatapointsToAlarm": alarm.late,
            "TreatMissingData": "notBreaching",
            "AlarmActions": [topic],
            "OKActions": [topic],
        },
    }


def resources(service: object, namespace: object, topic: object, *, prefix: str) -> dict[str, Any]:
    """Return the resources of all alarms of a service. ``prefix`` begins their names, and can have ``${...}`` of the document."""

    def name_of(alarm: Alarm) -> object:
        text = f"{prefix}-{alarm.name}"
        return {"Fn::Sub": text} if "${" in text else text

    return {one.name: resource(one, name_of(one), namespace, {"service": service}, topic) for one in ALARMS}

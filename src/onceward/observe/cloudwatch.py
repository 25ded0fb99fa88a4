"""Metrics for CloudWatch in its embedded metric format: lines of the log, which CloudWatch reads. No agent, no request.

The format is that of "Specification: Embedded metric format" in the CloudWatch user guide.
"""

import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Final, TextIO

import msgspec

from onceward.observe.events import Happening
from onceward.observe.measures import CALLS, KEYS, MEASURES, OUTBOX_AGE, Measure, Meter, ReadsGauges, Record

_MOST: Final = 100  # values of one metric in a line (the specification, "Target members")
_LONGEST: Final = 250  # characters of a dimension's value that are kept; CloudWatch takes 1,024 bytes
_ENCODER: Final = msgspec.json.Encoder()


class EmbeddedMetrics(Meter):
    """An observer that writes one line for each invocation or batch: ``Once(url, observe=[EmbeddedMetrics()])``.

    The dimensions are ``service`` and ``handler``, and ``service`` alone. Lambda handlers and batches of onceward write the line
    when they end. For handlers of your own call :meth:`flush`, or decorate them with :meth:`invocation`.

    Args:
        namespace: of the metrics.
        service: the value of that dimension; by default the Lambda function's name.
        stream: where the lines go; None is the standard output at that time.
        now: the time of a line, in seconds since the epoch.
    """

    def __init__(
        self,
        namespace: str = "onceward",
        service: str | None = None,
        stream: TextIO | None = None,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._namespace = namespace
        self._service = service or os.environ.get("AWS_LAMBDA_FUNCTION_NAME") or "onceward"
        self._stream = stream
        self._now = now
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, list[float]]] = defaultdict(dict)  # by handler, "" is the ledger, and metric
        self._full = False

    def __reduce__(self) -> tuple[object, ...]:
        return partial(EmbeddedMetrics, self._namespace, self._service, self._stream, now=self._now), ()

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

    def invocation(self, function: Callable[..., object]) -> Callable[..., object]:
        """Decorate a Lambda handler of your own: the line is written when it ends."""

        @wraps(function)
        def invoked(*args: object, **kwargs: object) -> object:
            try:
                return function(*args, **kwargs)
            finally:
                self.flush()

        return invoked

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
        return {"_aws": {"Timestamp": int(self._now() * 1000), "CloudWatchMetrics": directives}, **names, **values}


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

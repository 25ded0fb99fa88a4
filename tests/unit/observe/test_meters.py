"""What Prometheus, OpenTelemetry, CloudWatch and JSON lines get: of scripted events, and of real calls."""

import io
import json
import threading
import time
from datetime import datetime
from typing import ClassVar

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from onceward import Once, Parked
from onceward.observe import Event, StoreRequest, cloudwatch, json_lines, measures, otel_metrics, prometheus
from onceward.stores.gauges import LedgerGauges
from onceward.stores.memory import MemoryStore

SECRET = "customer-4711"
SCRIPT = [
    Event("claimed", f"n:{SECRET}", "n", 1, 5, "w", waited=0.001),
    Event("renewed", f"n:{SECRET}", "n", 1, 5, "w", left=60.0),
    Event("completed", f"n:{SECRET}", "n", 1, 5, "w", ran=0.02, left=50.0, took=0.03),
    Event("settled_late", f"n:{SECRET}", "n", 1, 5, "w", late=2.0),
    Event("replayed", f"n:{SECRET}", "n", 1, 5, "w", waited=0.004),
    Event("replayed", f"n:{SECRET}", "n"),  # from memory, so nobody waited
    Event("busy", f"n:{SECRET}", "n", 1, 5, "w", waited=3.0, left=7.0),
    Event("taken_over", f"n:{SECRET}", "n", 2, 6, "w", waited=0.1),
    Event("failed", f"n:{SECRET}", "n", 2, 6, "w", error=ValueError("payload"), ran=1.0, left=9.0, took=1.1),
    Event("lost", f"n:{SECRET}", "n", 2, 6, "w"),
    Event("parked", f"n:{SECRET}", "n", 3, 7, "w", error="broken", ran=4.0, left=8.0, took=4.5),
    Event("parked", f"n:{SECRET}", "n", 3, 7, "w", again=True, waited=0.001),
    Event("malformed", None, "n", error=ValueError("payload")),
    Event("sent", f"n:{SECRET}", "n", 1, 5, "w", waited=0.5, messages=3),
    Event("send_failed", f"n:{SECRET}", "n", 1, 5, "w", error=OSError("away"), target="sqs:orders"),
    Event("refused", f"n:{SECRET}", "n", 1, 5, "w", error=ValueError("payload"), target="sqs:orders"),
    StoreRequest("dynamodb://t", "dynamodb:PutItem", 0.004, units=1.0),
    StoreRequest("dynamodb://t", "dynamodb:PutItem", 0.006, "ConditionalCheckFailed"),
    StoreRequest("dynamodb://t", "dynamodb:PutItem", 0.002, "Throttling"),
]
CALLS = {"completed": 1, "replayed": 2, "busy": 1, "failed": 1, "lost": 1, "parked": 2, "malformed": 1}


@pytest.fixture
def registry():
    return CollectorRegistry()


def samples(registry):
    """All samples that Prometheus would parse, by name and labels."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for one in family.samples:
            found[one.name, tuple(sorted(one.labels.items()))] = one.value
    return found


def labels(**given):
    return tuple(sorted(given.items()))


def test_prometheus_counts_what_the_events_say(registry):
    metrics = prometheus.PrometheusMetrics(registry)
    for event in SCRIPT:
        metrics(event)
    found = samples(registry)
    for outcome, count in CALLS.items():
        assert found["onceward_calls_total", labels(handler="n", outcome=outcome)] == count
    assert SECRET not in generate_latest(registry).decode()
    n = labels(handler="n")
    of_handler = {"handler_duration_seconds_count": 3, "handler_duration_seconds_sum": 5.02, "outbox_sent_total": 3}
    sums = {"call_duration": 5.63, "lease_left": 67, "outbox_delay": 0.5, "settling_delay": 2}
    once_each = ("takeovers", "leases_lost", "lease_renewals", "parkings", "outbox_failures", "outbox_refused")
    of_handler |= {f"{name}_seconds_sum": value for name, value in sums.items()}
    for name, value in (of_handler | {f"{name}_total": 1 for name in once_each}).items():
        assert found[f"onceward_{name}", n] == pytest.approx(value), name
    for most, count in (("0.025", 1), ("1.0", 2), ("+Inf", 3)):
        assert found["onceward_handler_duration_seconds_bucket", labels(handler="n", le=most)] == count
    assert found["onceward_wait_duration_seconds_sum", labels(handler="n", answer="busy")] == 3
    assert found["onceward_wait_duration_seconds_count", labels(handler="n", answer="replayed")] == 1
    put = "dynamodb:PutItem"
    assert found["onceward_ledger_request_duration_seconds_count", labels(action=put, error="")] == 1
    refused = labels(action=put, error="ConditionalCheckFailed")
    assert found["onceward_ledger_request_duration_seconds_sum", refused] == 0.006
    assert found["onceward_ledger_capacity_total", labels(action=put)] == 1
    assert found["onceward_ledger_throttles_total", labels(action=put)] == 1


@pytest.mark.slow
def test_namespaces_beyond_the_limit_share_one_label(registry):
    metrics = prometheus.PrometheusMetrics(registry)
    for number in range(measures.MOST_NAMES + 50):
        metrics(Event("completed", "k", f"n{number}", ran=1.0))
    found = samples(registry)
    assert found["onceward_calls_total", labels(handler=measures.OTHER, outcome="completed")] == 50
    assert len([one for one in found if one[0] == "onceward_calls_total"]) == measures.MOST_NAMES + 1
    assert len(metrics.plans) == measures.MOST_NAMES


def parked_once(**options):
    once = Once("memory:", name="n", **options)
    once.acquire("p").park("broken")
    return once


def test_gauges_show_parked_keys(registry, reader):
    gauges = LedgerGauges(parked_once(), scan=True)
    prometheus.PrometheusLedger(gauges, registry)
    found = samples(registry)
    assert found["onceward_keys", labels(status="parked")] == 1
    assert found["onceward_keys", labels(status="lapsed")] == 0
    assert found["onceward_gauges_age_seconds", ()] >= 0
    otel_metrics.observe_ledger(gauges, MeterProvider([reader]))
    assert points(reader)["onceward.keys", "parked"].value == 1


def test_a_ledger_without_an_index_is_not_read_unasked():
    class Indexless(MemoryStore):
        capabilities: ClassVar = {}

        def select(self, *arguments):
            raise AssertionError("nobody asked for that")

    assert LedgerGauges(Once(Indexless(), name="n")).read()[measures.KEYS] == {}


def test_gauges_of_a_ledger_that_is_away_keep_their_last_values(caplog):
    once = parked_once()
    gauges = LedgerGauges(once, every=0.0, scan=True)
    before = gauges.read()
    once.store.capabilities = None  # nothing can be read any more
    after = gauges.read()
    assert after[measures.KEYS] == before[measures.KEYS]
    assert after[measures.GAUGE_AGE][()] > before[measures.GAUGE_AGE][()]
    assert before[measures.KEYS]["parked",] == 1
    assert "cannot be read" in caplog.text


def test_a_ledger_that_hangs_holds_up_no_other_metric(registry):
    answers = threading.Event()

    class Hangs(MemoryStore):
        capabilities: ClassVar = {}

        def select(self, *arguments):
            assert answers.wait(60)
            return super().select(*arguments)

    once = Once(Hangs(), name="n", observe=[prometheus.PrometheusMetrics(registry)])
    gauges = LedgerGauges(once, every=0.0, scan=True)
    prometheus.PrometheusLedger(gauges, registry)
    once.run("k", int)
    found = samples(registry)
    answers.set()
    assert ("onceward_keys", labels(status="parked")) not in found
    assert found["onceward_calls_total", labels(handler="n", outcome="completed")] == 1
    assert found["onceward_gauges_age_seconds", ()] > 0
    assert gauges.read(patience=None)[measures.KEYS]["parked",] == 0


@pytest.fixture
def reader():
    return InMemoryMetricReader()


def points(reader):
    """All data points, by the metric's name and the attributes' values."""
    data = reader.get_metrics_data()
    return {
        (one.name, *(value for _, value in sorted(point.attributes.items()))): point
        for of in data.resource_metrics
        for scope in of.scope_metrics
        for one in scope.metrics
        for point in one.data.data_points
    }


def test_opentelemetry_gets_what_the_events_say(reader):
    metrics = otel_metrics.OtelMetrics(MeterProvider([reader]))
    for event in SCRIPT:
        metrics(event)
    found = points(reader)
    for outcome, count in CALLS.items():
        assert found["onceward.calls", "n", outcome].value == count
    assert found["onceward.handler.duration", "n"].count == 3
    assert found["onceward.handler.duration", "n"].sum == pytest.approx(5.02)
    assert found["onceward.call.duration", "n"].sum == pytest.approx(5.63)
    assert found["onceward.wait.duration", "busy", "n"].sum == 3
    assert found["onceward.settling.delay", "n"].sum == 2
    assert found["onceward.lease.left.min", "n"].value == 8
    for name in ("takeovers", "leases.lost", "lease.renewals", "parkings"):
        assert found[f"onceward.{name}", "n"].value == 1
    put = "dynamodb:PutItem"
    assert found["onceward.ledger.request.duration.sum", put, "Throttling"].value == 0.002
    assert found["onceward.ledger.request.duration.count", put, ""].value == 1
    assert found["onceward.ledger.capacity", put].value == 1
    assert found["onceward.ledger.throttles", put].value == 1
    assert SECRET not in reader.get_metrics_data().to_json()


class Lines(io.StringIO):
    @property
    def told(self):
        return [json.loads(line) for line in self.getvalue().splitlines()]


def checked(line):
    """Check a line as the specification of the embedded metric format asks for it."""
    meta = line["_aws"]
    assert isinstance(meta["Timestamp"], int)
    for directive in meta["CloudWatchMetrics"]:
        assert directive.keys() == {"Namespace", "Dimensions", "Metrics"}
        for dimensions in directive["Dimensions"]:
            assert len(dimensions) <= 30
            assert all(isinstance(line[name], str) for name in dimensions)
        assert len(directive["Metrics"]) <= 100
        for metric in directive["Metrics"]:
            values = line[metric["Name"]]
            values = values if isinstance(values, list) else [values]
            assert 0 < len(values) <= 100
            assert all(isinstance(value, int | float) for value in values)
            assert metric["Unit"] in {"Seconds", "Count"}
    return line


def test_cloudwatch_gets_one_line_of_what_the_events_say():
    lines = Lines()
    metrics = cloudwatch.EmbeddedMetrics("shop", "pay", lines)
    for event in SCRIPT:
        metrics(event)
    metrics.flush()
    metrics.flush()  # there is nothing new
    (line,) = lines.told
    checked(line)
    assert abs(line["_aws"]["Timestamp"] / 1000 - time.time()) < 60
    of_handler, of_ledger = line["_aws"]["CloudWatchMetrics"]
    assert of_handler["Namespace"] == "shop"
    assert of_handler["Dimensions"] == [["service", "handler"], ["service"]]
    assert of_ledger["Dimensions"] == [["service"]]
    assert (line["service"], line["handler"]) == ("pay", "n")
    for outcome, count in CALLS.items():
        assert line[outcome.title()] == count
    assert line["HandlerDuration"] == [0.02, 1.0, 4.0]
    assert line["CallDuration"] == [0.03, 1.1, 4.5]
    assert line["Takeovers"] == line["LeasesLost"] == line["Parkings"] == line["LedgerThrottles"] == 1
    assert line["LedgerRequestDuration"] == [0.004, 0.006, 0.002]
    assert SECRET not in lines.getvalue()


def test_a_line_has_at_most_a_hundred_values_of_each_metric():
    lines = Lines()
    metrics = cloudwatch.EmbeddedMetrics(stream=lines)
    for measure, label in ((measures.HANDLER, "n"), (measures.REQUESTS, "insert")):
        record = metrics.record_of(measure, (label, "")[: len(measure.labels)])
        for number in range(130):  # threads measure before one of them writes
            record(float(number))
    metrics.flush()
    told = [checked(line) for line in lines.told]
    for name in ("HandlerDuration", "LedgerRequestDuration"):
        assert [len(line[name]) for line in told if name in line] == [100, 30]


def test_each_event_is_a_line_without_the_payload():
    lines = Lines()
    log = json_lines.JsonLines(lines)
    for event in SCRIPT:
        log(event)
    first, malformed = lines.told[0], lines.told[12]
    fields = {"kind": "claimed", "key": f"n:{SECRET}", "attempt": 1, "fence": 5, "worker": "w", "waited": 0.001}
    assert abs(datetime.fromisoformat(first.pop("time")).timestamp() - time.time()) < 60
    assert first == {"name": "n", **fields}
    assert malformed["error"] == "ValueError"
    assert "payload" not in lines.getvalue()
    assert len(lines.told) == 16


def test_lines_without_keys_have_none_in_any_place(caplog):
    lines = Lines()
    log = json_lines.JsonLines(lines, keys=False, requests=True)
    for event in SCRIPT:
        log(event)
    assert [line["units"] for line in lines.told if "units" in line] == [1.0]
    once = Once("memory:", name="n", on_error="park", observe=[log])

    @once(key="id")
    def handle(id):
        raise ValueError("the payload")

    for error in (ValueError, Parked):
        with pytest.raises(error, match="the payload"):
            handle(SECRET)
    assert lines.told[-1]["error"] == "Parked"
    for secret in (SECRET, "the payload"):
        assert secret not in lines.getvalue()
    assert "the payload" not in caplog.text

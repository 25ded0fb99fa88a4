"""The alerts, alarms and the dashboard of ``observability/``: loaded, evaluated, true to the metrics; and one trace of a message."""

import io
import json
import re
import statistics
import subprocess
import sys

import yaml
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from onceward import Once, aws, observe, outbox
from onceward.observe import cloudwatch, measures, otel_traces
from onceward.stores.gauges import LedgerGauges
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from places import ROOT
from queues.boxes import RecordedTarget
from servers.needs import needs, numbers
from tables import each

FOLDER = ROOT / "observability"
ALERTS = FOLDER / "prometheus-alerts.yml"


def promtool(*arguments):
    binary = needs("promtool", "apt-get install prometheus")
    done = subprocess.run([binary, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def names():
    """The names of all series that Prometheus gets from us, with their labels."""
    known = {}
    for measure in (*measures.MEASURES, *measures.GAUGES):
        name = measure.name.replace(".", "_") + ("_seconds" if measure.unit == "s" else "")
        ends = [""] if measure in measures.GAUGES else ["_bucket", "_count", "_sum"] if measure.bounds else ["_total"]
        known |= {name + end: set(measure.labels) for end in ends}
    return known


def expressions():
    """Every expression of the alerts and of the dashboard, with Grafana's variables filled in."""
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    written = [rule["expr"] for rule in rules] + [one["expr"] for panel in panels for one in panel.get("targets", ())]
    filled = {"$__rate_interval": "5m", "$job": ".*", "$handler": ".*"}
    return [re.sub(r"\$\w+", lambda met: filled[met[0]], text) for text in written]


def test_each_alert_fires_when_it_must_and_only_then():
    promtool("check", "rules", ALERTS.name)
    promtool("test", "rules", "prometheus-alerts.test.yml")
    rules = {rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]}
    cases = yaml.safe_load((FOLDER / "prometheus-alerts.test.yml").read_text())["tests"]
    fired = {one["alertname"] for case in cases for one in case["alert_rule_test"] if one.get("exp_alerts")}
    assert fired == rules


def test_alerts_and_dashboard_are_promql_over_metrics_and_labels_that_there_are(tmp_path):
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "panels.yml"))
    known, shown = names(), set()
    for text in expressions():
        for name, selector in re.findall(r"(onceward_\w+)(\{[^}]*\})?", text):
            asked = set(re.findall(r'(\w+)\s*(?:=~|!=|=)\s*"', selector)) - {"job"}
            assert asked <= known[name], (name, selector)
            shown.add(re.sub("_(bucket|count|sum|total)$", "", name))
    assert shown == {re.sub("_(bucket|count|sum|total)$", "", name) for name in known}, "each is shown"


def alarms():
    resources = yaml.safe_load((FOLDER / "cloudwatch-alarms.yaml").read_text())["Resources"]
    assert all(one["Type"] == "AWS::CloudWatch::Alarm" for one in resources.values())
    return {name: one["Properties"] for name, one in resources.items()}


def test_the_file_of_alarms_is_what_its_table_says_and_each_is_tried():
    assert alarms().keys() == {*BAD, *ON_GAUGES}
    done = subprocess.run([sys.executable, FOLDER / "print_alarms.py"], capture_output=True, text=True, timeout=120)
    assert done.stdout == (FOLDER / "cloudwatch-alarms.yaml").read_text(), "run observability/print_alarms.py"


def values(lines, alarm):
    """What CloudWatch gets for an alarm's metric from lines in its format, if its dimensions are among theirs."""
    dimensions = [one["Name"] for one in alarm["Dimensions"]]
    found = []
    for line in map(json.loads, lines.splitlines()):
        for directive in line["_aws"]["CloudWatchMetrics"]:
            told = {metric["Name"] for metric in directive["Metrics"]}
            if alarm["MetricName"] in told and dimensions in directive["Dimensions"]:
                value = line[alarm["MetricName"]]
                found += value if isinstance(value, list) else [value]
    return found


def breaches(alarm, found):
    """Whether one period with these values is beyond the threshold; without values it is not."""
    assert alarm["TreatMissingData"] == "notBreaching"
    assert alarm["ComparisonOperator"] == "GreaterThanThreshold"
    if not found:
        return False
    statistic = alarm.get("Statistic") or alarm["ExtendedStatistic"]
    p90 = lambda of: statistics.quantiles(of, n=10)[-1] if len(of) > 1 else of[0]
    return {"Sum": sum, "Minimum": min, "Maximum": max, "p90": p90}[statistic](found) > alarm["Threshold"]


def written(*events, gauges=None):
    lines = io.StringIO()
    metrics = cloudwatch.EmbeddedMetrics(service="shop", stream=lines)
    for event in events:
        metrics(event)
    metrics.flush()
    if gauges is not None:
        metrics.ledger(gauges)
    return lines.getvalue()


def of(kind, times=1, **fields):
    return [observe.Event(kind, "n:k", "n", **fields)] * times


BAD = {
    "ParkedKeys": of("parked", ran=1.0),
    "TakeoversJump": of("taken_over", 4),
    "LeasesLost": of("lost", 2),
    "SettlingLags": of("settled_late", 3, late=8.0),
    "NotRecorded": of("not_recorded"),
    "OutboxRefused": of("refused"),
    "Throttles": [observe.StoreRequest("dynamodb://t", "dynamodb:PutItem", 0.1, "Throttling")] * 31,
}
GOOD = [
    *of("completed", 50, ran=1.0, left=50.0, took=1.1),
    *of("parked", again=True, waited=0.1),
    *of("taken_over", 3),
    *of("lost"),
    *of("settled_late", 3, late=0.2),
    *of("sent", messages=2, waited=0.1),
    *[observe.StoreRequest("dynamodb://t", "dynamodb:PutItem", 0.1, "ConditionalCheckFailed")] * 31,
]


@each("name", BAD)
def test_an_alarm_of_cloudwatch_goes_off_when_it_must_and_only_then(name):
    alarm = alarms()[name]
    assert breaches(alarm, values(written(*BAD[name]), alarm))
    assert not breaches(alarm, values(written(*GOOD), alarm))


ON_GAUGES = ["LapsedKeysStand", "OutboxAges"]


@each("name", ON_GAUGES)
def test_an_alarm_on_the_gauges_of_a_ledger_goes_off_when_it_must(name):
    clock, alarm, target = ManualClock(1000.0), alarms()[name], RecordedTarget()
    once = Once(MemoryStore(clock), name="n", lease=10, clock=clock)
    gauges = LedgerGauges(once, every=0.0)
    assert not breaches(alarm, values(written(gauges=gauges), alarm))
    target.answers.extend([OSError("away")] * 1000)  # a target that is away for as long as the test runs
    outbox.register("alarming", lambda _: target)
    once.acquire("lapses")
    with once.claim("k", name="n") as claim:
        claim.send("alarming:a", "x")
    outbox.drain(0.0)
    clock.advance(400)
    assert breaches(alarm, values(written(gauges=gauges), alarm))


NAMES = numbers()


def test_one_trace_leads_from_send_through_queue_to_worker(front, ministack, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", front.url)
    queue, ended, tracing = ministack.queue(f"traced-{next(NAMES)}"), InMemorySpanExporter(), TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(ended))
    once = Once("memory:", observe=[otel_traces.OtelTraces(tracing)])
    with tracing.get_tracer("web").start_as_current_span("request"):
        aws.send(once, queue, {"order": 7}, key=1)
    aws.SqsWorker(once, queue, len, key="obj.order", name="charges", wait=1).run(until_empty=True)
    spans = {span.name: span for span in ended.get_finished_spans()}
    process = spans[f"process {queue.rpartition('/')[2]}"]
    assert spans["send"].parent.span_id == spans["request"].context.span_id
    assert process.parent.span_id == spans["send"].context.span_id
    assert (process.attributes["onceward.outcome"], process.kind) == ("completed", SpanKind.CONSUMER)

"""Spans of real calls: what is current in the handler, what the record keeps, what a span says at its end; and the page of observing."""

import asyncio
import contextlib
import json
import re
import sys
from types import SimpleNamespace

import pytest
import yaml
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import generate_latest

from onceward import LeaseLost, Mismatch, Once, aws, current, outbox, web
from onceward.aws.sqs.queue import LARGEST
from onceward.aws.targets.queues import SqsTarget
from onceward.observe.otel_traces import OtelTraces
from onceward.stores.memory import MemoryStore
from places import DOCS, ROOT
from queues.boxes import RecordedTarget
from queues.lambda_events import sqs, sqs_record
from tables import each
from web import asgi, wsgi

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """Spans that end are kept here, and observers are made for them."""

    def __init__(self):
        self.provider = TracerProvider()
        self._kept = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))

    def observer(self, **options):
        return OtelTraces(self.provider, **options)

    @property
    def spans(self):
        return list(self._kept.get_finished_spans())

    @property
    def outcomes(self):
        return [span.attributes["onceward.outcome"] for span in self.spans]


@pytest.fixture
def traced():
    return Traced()


@pytest.fixture
def once(traced):
    return Once("memory:", name="n", observe=[traced.observer()])


def written(held):
    return f"00-{held.trace_id:032x}-{held.span_id:016x}-{held.trace_flags:02x}"


def here():
    """The traceparent of the current span."""
    held = trace.get_current_span().get_span_context()
    return written(held) if held.is_valid else None


def of(span):
    return written(span.context)


def links(span):
    return [written(link.context) for link in span.links]


def boom():
    raise ValueError("the payload")


async def here_async():
    await asyncio.sleep(0)
    return here()


@pytest.mark.parametrize("awaiting", [False, True])
def test_a_calls_span_is_current_in_its_handler_and_kept_with_its_record_to_which_a_replay_has_a_link(
    once, traced, awaiting
):
    seen, _ = [asyncio.run(once.run_async("k", here_async)) if awaiting else once.run("k", here) for _ in range(2)]
    span, replay = traced.spans
    assert seen == of(span) == once.ledger.show("n:k")[0].trace
    assert links(replay) == [of(span)]
    assert replay.context.trace_id != span.context.trace_id
    assert traced.outcomes == ["completed", "replayed"]
    assert here() is None
    assert span.name == "n"
    told = {name: value for name, value in span.attributes.items() if name != "onceward.fence"}
    ends = {"onceward.attempt": 1, "onceward.outcome": "completed"}
    assert told == {"onceward.handler": "n", "onceward.key": "n:k", **ends}


def test_a_failure_is_an_error_without_the_text_of_the_handlers_exception(once, traced):
    with pytest.raises(ValueError, match="payload"):
        once.run("k", boom)
    (span,) = traced.spans
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "ValueError"
    assert span.attributes["error.type"] == "builtins.ValueError"
    assert "the payload" not in span.to_json()


def test_a_lease_that_is_lost_is_an_error_and_its_takeover_says_so(traced, clock):
    once = Once(MemoryStore(clock), name="n", clock=clock, observe=[traced.observer()], lease=10, heartbeat=0)

    def claim_again():
        clock.advance(20)
        once.acquire("k", name="n").complete()

    with pytest.raises(LeaseLost):
        once.run("k", claim_again)
    taker, loser = traced.spans
    assert taker.attributes["onceward.taken_over"] is True
    assert loser.attributes["onceward.outcome"] == "lost"
    assert loser.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("awaiting", [False, True])
def test_each_record_of_a_batch_has_its_own_current_span(once, traced, awaiting):
    batch = once.batch(lambda record: here(), key="record.id", name="b", concurrency=4)
    records = [{"id": number} for number in range(6)]

    def go():
        return asyncio.run(batch.run_async(records)) if awaiting else batch.run(records)

    ran, again = go(), go()
    runs = {span.attributes["onceward.key"]: of(span) for span in traced.spans[:6]}
    assert {one.key: one.value for one in ran} == runs
    assert {span.attributes["onceward.key"]: links(span) for span in traced.spans[6:]} == {
        key: [span] for key, span in runs.items()
    }
    assert [one.status for one in again] == ["replayed"] * 6
    assert here() is None


def handled(traced, number, parent):
    """Handle a message of SQS with this parent; return its record."""
    record = sqs_record(f"m{number}", {"id": number})
    record["messageAttributes"]["traceparent"] = {"stringValue": parent, "dataType": "String"}
    aws.on_sqs(Once("memory:", observe=[traced.observer()]), name="n")(lambda order: None)({"Records": [record]})
    return record


def test_a_message_continues_its_own_trace_and_links_to_the_current_span(traced):
    with traced.provider.get_tracer("test").start_as_current_span("invocation") as invocation:
        record = handled(traced, 1, PARENT)
    span = traced.spans[0]
    assert (span.context.trace_id, span.parent.span_id) == (int(PARENT[3:35], 16), int(PARENT[36:52], 16))
    assert [link.context for link in span.links] == [invocation.get_span_context()]
    assert span.kind is SpanKind.CONSUMER
    queue = record["eventSourceARN"].rpartition(":")[2]
    assert span.name == f"process {queue}"
    told = {name: value for name, value in span.attributes.items() if name.startswith("messaging.")}
    operation = {"messaging.operation.type": "process", "messaging.operation.name": "process"}
    message = {"messaging.destination.name": queue, "messaging.message.id": "m1"}
    assert told == {"messaging.system": "aws_sqs", **operation, **message}
    for number, wrong in enumerate(["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"]):
        handled(traced, number, wrong)
    assert [span.parent for span in traced.spans[2:]] == [None] * 3


def test_a_refused_call_without_keys_leaves_no_key_in_its_span(traced):
    once = Once("memory:", name="n", observe=[traced.observer(keys=False)])

    @once(key="id", fingerprint="text")
    def handle(id, text):
        return text

    handle("secret", "a")
    with pytest.raises(Mismatch):
        handle("secret", "b")
    assert traced.spans[1].status.description == "Mismatch"
    assert not any("secret" in span.to_json() for span in traced.spans)


@pytest.mark.parametrize(
    ("headers", "size", "carried"),
    [({}, 1, True), ({str(number): "v" for number in range(7)}, 1, False), ({}, LARGEST - 200, False)],
    ids=["room", "no attribute left", "no bytes left"],
)
def test_a_message_to_a_queue_carries_the_current_trace_if_there_is_room(aws_of, traced, headers, size, carried):
    once, sent = Once("memory:", observe=[traced.observer()]), []
    aws_of(sent)
    with traced.provider.get_tracer("test").start_as_current_span("outer"):
        aws.send(once, f"traced-{len(headers)}-{size}", "x" * size, key=1, headers=headers)
    (span,) = [one for one in traced.spans if one.name == "send"]
    assert ("traceparent" in sent[0].headers) is carried
    assert not carried or span.context.trace_id == span.parent.trace_id


@pytest.fixture
def aws_of(monkeypatch):
    """Takes what is sent to queues into a list."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    return lambda sent: monkeypatch.setattr(SqsTarget, "send", lambda _, messages: sent.extend(messages) or [None])


def test_a_step_has_a_span_within_that_of_its_call_and_is_an_event_once_it_is_answered_from_the_record(once, traced):
    def handle():
        claim = current()
        seen = claim.step("mail", here)
        return boom() if claim.attempt == 1 else seen

    with pytest.raises(ValueError, match="payload"):
        once.run("k", handle)
    step, call = traced.spans
    assert once.run("k", handle) == of(step)
    assert step.parent == call.context
    (event,) = traced.spans[-1].events
    assert (event.name, dict(event.attributes)) == ("onceward.step", {"onceward.step": "mail"})
    assert [span.name for span in traced.spans] == ["step mail", "n", "n"]


def test_a_message_that_leaves_with_a_completion_carries_the_trace_unless_its_target_refuses_more_headers(
    once, monkeypatch
):
    def check(message):
        if len(message.headers) > 2:  # two are of onceward
            raise ValueError("too many headers")

    target, narrow = RecordedTarget(), RecordedTarget()
    monkeypatch.setattr(narrow, "check", check)
    outbox.register("traced", lambda _: target)
    outbox.register("narrow", lambda _: narrow)

    def handle():
        current().send("traced:a", "one")
        current().send("traced:a", "two", headers={"traceparent": PARENT})
        current().send("narrow:a", "one")
        return here()

    seen = once.run("k", handle)
    assert outbox.drain(10) == 0
    assert [message.headers["traceparent"] for message in target.sent] == [seen, PARENT]
    assert "traceparent" not in narrow.sent[0].headers


@pytest.mark.parametrize(("host", "instrumented"), [("asgi", True), ("wsgi", False)])
def test_a_requests_span_continues_the_trace_of_its_server_or_else_of_its_client(once, traced, host, instrumented):
    seen = []

    async def asgi_app(scope, receive, send):
        seen.append(here())
        await asgi.answer(send)

    def wsgi_app(environ, start):
        seen.append(here())
        start("201 Created", [("Content-Type", "application/json")])
        return [b"{}"]

    rules = web.Rules(web.Route("/orders"), scope=lambda _: "me")

    def ask():
        if host == "wsgi":
            wsgi.ask(web.WsgiIdempotency(wsgi_app, once, rules, name="shop"), HTTP_TRACEPARENT=PARENT)
            return
        headers = [*asgi.KEY, (b"traceparent", PARENT.encode())]
        asgi.run(asgi.ask(web.AsgiIdempotency(asgi_app, once, rules, name="shop"), headers=headers))

    server = traced.provider.get_tracer("server")
    for _ in range(2):
        with server.start_as_current_span("server") if instrumented else contextlib.nullcontext():
            ask()
        assert here() is None
    spans = [span for span in traced.spans if span.name != "server"]
    ran, replayed = spans
    assert seen == [of(ran)]
    assert links(replayed) == [of(ran)]
    assert ran.attributes["http.route"] == "/orders"
    assert [span.attributes["onceward.outcome"] for span in spans] == ["completed", "replayed"]
    servers = [span.context.span_id for span in traced.spans if span.name == "server"]
    assert [span.parent.span_id for span in spans] == (servers or [int(PARENT[36:52], 16)] * 2)


def test_spans_that_fail_change_nothing_and_are_logged_once(caplog):
    class Broken:
        def __call__(self, event): ...
        def begin(self, name, key, incoming):
            raise RuntimeError("broken")

    once = Once("memory:", name="n", observe=[Broken()])
    assert [once.run(key, int) for key in "ab"] == [0, 0]
    assert len([line for line in caplog.messages if "begin" in line]) == 1


sys.path.insert(0, str(DOCS))

PAGE = (ROOT / "docs" / "how-to" / "observing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    told = []
    names = {
        "bank": SimpleNamespace(pay=lambda order: f"paid {order['id']}"),
        "statsd": SimpleNamespace(
            increment=lambda name, tags: told.append(tags["kind"]), timing=lambda name, ran, tags: told.append(name)
        ),
    }
    exec(compile(BLOCKS[0], "docs/how-to/observing.md", "exec"), names)
    assert names["charge"]({"id": "1"}) == names["charge"]({"id": "1"}) == "paid 1"
    assert not trace.get_current_span().is_recording()
    exec(BLOCKS[1].replace("start_http_server(PORT)", ""), names)
    names["once"].run("k", int)
    scraped = generate_latest().decode()
    assert 'onceward_calls_total{handler="builtins.int",outcome="completed"} 1.0' in scraped
    assert 'onceward_keys{status="parked"} 0.0' in scraped
    exec(compile(BLOCKS[2], "docs/how-to/observing.md", "exec"), names)
    capsys.readouterr()
    names["pay"](sqs({"order": 1, "id": "o1"}))
    names["every_five_minutes"]({}, None)
    line, gauges = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["service"], line["handler"], line["Completed"]) == ("payments", "pay", 1)
    assert gauges["KeysParked"] == 0
    for block in BLOCKS[3:]:
        exec(compile(block, "docs/how-to/observing.md", "exec"), names)
    names["audit"].run("a", int)
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == ["claimed", "completed"]
    names["counted"].run("b", int)
    assert told == ["claimed", "completed", "onceward.ran"]


@each("file", ["prometheus-alerts.yml", "cloudwatch-alarms.yaml"])
def test_every_alert_and_alarm_is_on_the_page(file):
    told = yaml.safe_load((ROOT / "observability" / file).read_text())
    names = told["Resources"] if "Resources" in told else [rule["alert"] for rule in told["groups"][0]["rules"]]
    for name in names:
        assert f"`{name}`" in PAGE, name

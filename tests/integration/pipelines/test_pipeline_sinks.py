"""What pipelines send: messages by the outbox, requests with their key, and lines in objects of S3, each once."""

import gzip
import json
import uuid

import pytest

from commands import pipeline_runs
from fixtures import closing_fixture
from onceward.outbox import sender, targets
from onceward.pipelines import load
from onceward.pipelines.call import StepFailed
from onceward.pipelines.sinks import s3 as buckets
from onceward.pipelines.sinks.s3 import Buckets, _Member
from queues.boxes import RecordedTarget
from servers.needs import numbers
from servers.proxy import Fault, Refuse
from web.http_servers import CUT, LOST, Answering

SINKS = {  # each kind, and the address of its messages in the outbox
    "sqs: {queue: orders": "sqs:orders",
    "sqs: {queue: orders.fifo, region: eu-west-1, group: message.shop": "sqs:orders.fifo?region=eu-west-1",
    "sns: {topic: 'arn:aws:sns:eu-west-1:123456789012:paid'": "sns:arn:aws:sns:eu-west-1:123456789012:paid",
    "eventbridge: {bus: b, source: shop & more, detail_type: Paid=now": (
        "eventbridge:b?source=shop%20%26%20more&detail-type=Paid%3Dnow"
    ),
    "kinesis: {stream: s, group: message.shop": "kinesis:s",
    "firehose: {stream: s": "firehose:s",
    "kafka: {topic: t, servers: 'a:1,b:2', group: message.shop": "kafka://a:1,b:2/t",
    "rabbitmq: {queue: q": "amqp:?queue=q",
    "rabbitmq: {exchange: e, routing_key: 'a b', server: 'h:1/v', tls: true": "amqps://h:1/v?exchange=e&key=a%20b",
    "nats: {subject: a.in, servers: 'h:1'": "nats://h:1/a.in",
    "redis_stream: {stream: 's t', server: 'h:1', database: 3, tls: true": "rediss-stream://h:1/3/s%20t",
    "http: {url: 'http://h/hook'": "http://h/hook",
}


@pytest.fixture
def send(tmp_path, aws, monkeypatch):
    """Run a file with a sink twice, and return what came to its target, whose address its own target has taken."""

    def send(sink, address, messages, more=""):
        parts = (
            f"sinks:\n  - {sink}, message: message.body, headers: {{x-id: message.id, x-no: message.none}}}}\n{more}"
        )
        file = pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", parts, messages)
        load(file)
        target = RecordedTarget()
        monkeypatch.setitem(targets._opened, address, target)
        for status in ("done", "replayed"):
            assert {one.status for one in pipeline_runs.run(file)} == {status}
            assert sender.SENDER.drain(60) == 0
        return target.sent

    monkeypatch.setenv("AMQP_URL", "amqp://localhost")
    return send


@pytest.mark.parametrize(("sink", "address"), SINKS.items())
def test_a_message_goes_to_its_address_with_its_derived_key(send, sink, address):
    messages = [{"id": n, "shop": "ab"[n % 2], "body": {"n": n, "é": [None]}} for n in range(8)]
    sent = send(sink, address, messages)
    assert sorted(json.loads(one.body)["n"] for one in sent) == list(range(8))
    for one in sent:
        body = json.loads(one.body)
        assert body["é"] == [None]
        assert (one.headers["x-id"], "x-no" in one.headers) == (str(body["n"]), False)
        assert one.group == ("ab"[body["n"] % 2] if "group" in sink else None)
    assert len({uuid.UUID(one.key) for one in sent}) == 8


def test_a_guard_around_one_sink_lets_a_payload_through_once(send):
    messages = [{"id": n, "body": {"order": n % 3}} for n in range(9)]
    guard = "    name: shipped\n    guard: {key: message.body.order, on_busy: 60s}\n  - stdout:\n"
    sent = send("sqs: {queue: orders", "sqs:orders", messages, guard)
    assert sorted(json.loads(one.body)["order"] for one in sent) == [0, 1, 2]


NAMES = numbers()


@pytest.fixture
def bucket(ministack, aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", ministack.url)
    return ministack.bucket(f"pipeline-{next(NAMES)}")


@pytest.fixture
def slow(front, bucket, monkeypatch):
    """The bucket behind a proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", front.url)
    monkeypatch.setattr(buckets, "_PAUSES", (0.01, 0.01, None))
    return bucket


def lines_of(server, bucket):
    found = []
    for name, content in server.objects(bucket).items():
        text = gzip.decompress(content) if name.endswith(".gz") and content else content
        found += [json.loads(line) for line in text.splitlines()]
    return found


def written(folder, bucket, messages, more=""):
    parts = f"concurrency: 20\nsinks:\n  - s3: {{bucket: {bucket}, prefix: in/, age: 50ms{more}}}\n"
    return pipeline_runs.written(folder, f"sqlite:///{folder}/ledger.db", parts, messages)


def test_messages_of_one_time_share_an_object_up_to_its_count(ministack, bucket, tmp_path):
    file = written(tmp_path, bucket, [{"id": n} for n in range(60)], ", count: 10, gzip: true, message: message.id")
    assert {one.status for one in pipeline_runs.run(file)} == {"done"}
    objects = ministack.objects(bucket)
    assert len(objects) < 60
    assert all(name.startswith("in/") and name.endswith(".ndjson.gz") for name in objects)
    assert all(gzip.decompress(content).count(b"\n") <= 10 for content in objects.values())
    assert sorted(lines_of(ministack, bucket)) == list(range(60))
    assert {one.status for one in pipeline_runs.run(file)} == {"replayed"}
    assert ministack.objects(bucket) == objects


def test_a_lost_answer_makes_no_second_object(ministack, front, slow, tmp_path):
    lost = iter([Fault(lose_reply=True)] * 3)
    front.rule = lambda seen: next(lost, None) if seen.action == "PUT" else None
    file = written(tmp_path, slow, [{"id": n} for n in range(5)])
    while {one.status for one in pipeline_runs.run(file)} - {"done", "replayed"}:
        pass
    assert sorted(one["id"] for one in lines_of(ministack, slow)) == list(range(5))


async def test_an_object_that_was_given_up_is_not_written_late(ministack, bucket):
    slow, quick = Buckets(None), Buckets(None)
    late, there = (bucket, "late"), (bucket, "there")
    assert not await quick.has(late)
    with pytest.raises(StepFailed, match="given up"):
        await slow.write(late, b"x\n")
    await slow.write(there, b"x\n")
    await slow.write(there, b"x\n")  # as after a lost answer
    assert await quick.has(there)
    slow.close()
    quick.close()
    assert ministack.objects(bucket) == {"late": b"", "there": b"x\n"}


@pytest.mark.parametrize("change", ["", "gzip", "prefix", "bucket"])
def test_an_object_is_looked_for_where_it_was_written(ministack, bucket, monkeypatch, tmp_path, change):
    other = ministack.bucket(f"other-{next(NAMES)}")
    file = written(tmp_path, bucket, [{"id": n} for n in range(3)])
    settings = {"bucket": bucket, "prefix": "in/", "age": "50ms"}
    head = file.read_text().partition("sinks:")[0]

    def run(**more):
        file.write_text(f"{head}sinks: [{json.dumps({'name': 'lake', 's3': settings | more})}]\n")
        return {one.status for one in pipeline_runs.run(file)}

    async def killed(self, place, content, write=Buckets.write):
        await write(self, place, content)
        raise OSError

    async def joined(member, joined=_Member.joined):  # of the version before
        return (await joined(member))[1].removeprefix("in/").removesuffix(".ndjson")

    with monkeypatch.context() as patch:
        patch.setattr(Buckets, "write", killed)
        if not change:
            patch.setattr(_Member, "joined", joined)
        assert run() == {"failed"}
    changes = {"gzip": True, "prefix": "out/", "bucket": other}
    assert run(**{name: changes[name] for name in changes if name == change}) == {"done"}
    assert sorted(one["id"] for name in (bucket, other) for one in lines_of(ministack, name)) == [0, 1, 2]


def test_messages_wait_while_s3_refuses_and_are_written_later(ministack, front, slow, tmp_path):
    front.rule = lambda seen: Refuse("AccessDenied", 403)
    file = written(tmp_path, slow, [{"id": n} for n in range(5)])
    (error,) = {str(one.error) for one in pipeline_runs.run(file)}
    assert "AccessDenied" in error
    assert ministack.objects(slow) == {}
    front.clear()
    assert {one.status for one in pipeline_runs.run(file)} == {"done"}
    assert sorted(one["id"] for one in lines_of(ministack, slow)) == list(range(5))


shop = closing_fixture(Answering)


@pytest.fixture
def pipeline(tmp_path):
    def make(parts, *messages):
        return pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", parts, messages)

    return make


def test_a_request_has_a_derived_key_and_its_answer_is_recorded(shop, pipeline):
    parts = f"""steps:
  - http:
      url: {shop.url}/orders/{{order}}/pay?mode=live
      path: {{order: message.id}}
      query: {{currency: message.currency, note: message.note}}
      headers: {{Authorization: Bearer secret}}
    into: paid
sinks:
  - stdout:
"""
    file = pipeline(parts, {"id": "a/b c", "currency": "EUR"})
    (first,), (again,) = pipeline_runs.run(file), pipeline_runs.run(file)
    assert first.value == again.value
    assert first.value[0]["paid"] == {"status": 200, "body": {"ok": True}}
    ((method, path, headers, body),) = shop.came
    assert (method, path) == ("POST", "/orders/a%2Fb%20c/pay?mode=live&currency=EUR")
    assert json.loads(body) == {"id": "a/b c", "currency": "EUR"}
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Idempotency-Key"].count('"') == 2


def test_a_cookie_of_one_message_goes_with_no_other(shop, pipeline):
    shop.answers = [(200, {"Set-Cookie": "session=1"})]
    pipeline_runs.run(pipeline(f"concurrency: 1\nsteps:\n  - http: {{url: {shop.url}}}\n", {"id": 1}, {"id": 2}))
    assert [headers.get("Cookie") for _, _, headers, _ in shop.came] == [None] * 2


def test_a_request_without_an_answer_is_sent_again_with_its_key_also_by_the_next_attempt(shop, pipeline):
    shop.answers = [LOST, (503, {}), (500, {})]
    file = pipeline(f"steps:\n  - http: {{url: {shop.url}/}}\n", {"id": 1})
    assert [one.status for one in pipeline_runs.run(file)] == ["failed"]
    assert [one.status for one in pipeline_runs.run(file)] == ["done"]
    assert len(shop.came) == 4
    assert len(set(shop.keys)) == 1


@pytest.mark.parametrize(("method", "answer", "times"), [("POST", LOST, 1), ("POST", CUT, 1), ("PUT", LOST, 2)])
def test_a_post_to_a_server_without_keys_is_never_sent_again(shop, pipeline, method, answer, times):
    shop.answers = [answer]
    parts = f"steps:\n  - http: {{url: {shop.url}/, method: {method}, key_header: null}}\n    on_lapse: park\n"
    file = pipeline(parts, {"id": 1})
    pipeline_runs.run(file)
    (outcome,) = pipeline_runs.run(file)
    assert outcome.status == ("parked" if method == "POST" else "replayed")
    assert len(shop.came) == times
    assert shop.keys == [None] * times


@pytest.mark.parametrize(
    ("answers", "first", "then"), [([(422, {})], "failed", "done"), ([LOST, (422, {})], "parked", "parked")]
)
def test_a_refusal_was_certainly_not_made_unless_an_answer_was_lost_before(shop, pipeline, answers, first, then):
    shop.answers = list(answers)
    file = pipeline(f"steps:\n  - http: {{url: {shop.url}/}}\n    on_lapse: park\n", {"id": 1})
    (failed,) = pipeline_runs.run(file)
    assert failed.status == first
    assert "answered 422" in str(failed.error)
    assert [one.status for one in pipeline_runs.run(file)] == [then]


def test_a_secret_in_a_query_is_in_no_record(shop, pipeline, tmp_path):
    shop.answers = [(422, {})]
    file = pipeline(f"steps:\n  - http: {{url: '{shop.url}/pay?token=secret-7'}}\n", {"id": 1})
    (failed,) = pipeline_runs.run(file)
    assert "answered 422" in str(failed.error)
    assert [one.status for one in pipeline_runs.run(file)] == ["done"]
    assert [path for _, path, _, _ in shop.came] == ["/pay?token=secret-7"] * 2
    assert all(b"secret-7" not in part.read_bytes() for part in tmp_path.glob("ledger.db*"))


def test_a_value_that_would_leave_its_part_of_the_path_is_refused(shop, pipeline):
    parts = f"steps:\n  - http: {{url: '{shop.url}/a/{{id}}', path: {{id: message.id}}, method: GET}}\n"
    (outcome,) = pipeline_runs.run(pipeline(parts, {"id": ".."}))
    assert "cannot be a part of a path" in str(outcome.error)
    assert shop.came == []

"""Messages that a pipeline writes to S3: each in one object, over kills, lost answers and refusals."""

import json

import pytest

import pipeline_runs
from onceward.pipelines import PipelineInvalid, load
from servers import Fault, Refuse, numbers

NAMES = numbers()


@pytest.fixture
def bucket(ministack, aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", ministack.url)
    return ministack.bucket(f"pipeline-{next(NAMES)}")


@pytest.fixture
def slow(front, bucket, monkeypatch):
    """The bucket behind a proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", front.url)
    return bucket


def ids_in(server, bucket):
    return sorted(json.loads(content)["id"] for content in server.objects(bucket).values())


def written(folder, bucket, messages):
    parts = f"concurrency: 20\nsinks:\n  - s3: {{bucket: {bucket}, prefix: in/}}\n"
    return pipeline_runs.written(folder, f"sqlite:///{folder}/ledger.db", parts, messages)


def test_each_message_is_in_an_object_of_its_own(ministack, bucket, tmp_path):
    file = written(tmp_path, bucket, [{"id": n} for n in range(60)])
    assert {one.status for one in pipeline_runs.run(file)} == {"done"}
    objects = ministack.objects(bucket)
    assert all(name.startswith("in/") and name.endswith(".json") for name in objects)
    assert ids_in(ministack, bucket) == list(range(60))
    assert {one.status for one in pipeline_runs.run(file)} == {"replayed"}
    assert ministack.objects(bucket) == objects


def test_each_message_is_in_one_object_over_kills(ministack, bucket, tmp_path):
    file = written(tmp_path, bucket, [{"id": n} for n in range(400)])
    pipeline_runs.storm(file, kills=8)
    assert ids_in(ministack, bucket) == list(range(400))


def test_a_lost_answer_makes_no_second_object(ministack, front, slow, tmp_path):
    lost = iter([Fault(lose_reply=True)] * 3)
    front.rule = lambda seen: next(lost, None) if seen.action == "PUT" else None
    file = written(tmp_path, slow, [{"id": n} for n in range(5)])
    while {one.status for one in pipeline_runs.run(file)} - {"done", "replayed"}:
        pass
    assert ids_in(ministack, slow) == list(range(5))


def test_messages_wait_while_s3_refuses_and_are_written_later(ministack, front, slow, tmp_path):
    front.rule = lambda seen: Refuse("AccessDenied", 403)
    file = written(tmp_path, slow, [{"id": n} for n in range(5)])
    assert all("AccessDenied" in str(one.error) for one in pipeline_runs.run(file))
    assert ministack.objects(slow) == {}
    front.clear()
    assert {one.status for one in pipeline_runs.run(file)} == {"done"}
    assert ids_in(ministack, slow) == list(range(5))


def test_a_guard_around_the_sink_lets_a_payload_through_once(ministack, bucket, tmp_path):
    messages = [{"id": n, "order": n % 3} for n in range(9)]
    parts = f"""sinks:
  - s3: {{bucket: {bucket}}}
    guard: {{key: message.order, on_busy: 60s}}
"""
    file = pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", parts, messages)
    assert {one.status for one in pipeline_runs.run(file)} == {"done"}
    orders = sorted(json.loads(content)["order"] for content in ministack.objects(bucket).values())
    assert orders == [0, 1, 2]


def test_a_bucket_that_cannot_be_is_told(tmp_path):
    file = written(tmp_path, "'a/b'", [])
    with pytest.raises(PipelineInvalid, match="is not the name of a bucket"):
        load(file)

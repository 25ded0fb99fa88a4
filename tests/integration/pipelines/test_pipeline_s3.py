"""Lines that a pipeline writes to S3: each message in one object, over kills, lost answers and late requests."""

import asyncio
import gzip
import json

import pytest

from commands import pipeline_runs
from onceward.pipelines.call import StepFailed
from onceward.pipelines.sinks import s3 as buckets
from onceward.pipelines.sinks.s3 import Buckets, _joined
from servers.needs import numbers
from servers.proxy import Fault, Refuse

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


def test_an_object_that_was_given_up_is_not_written_late(ministack, bucket):
    async def main():
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

    asyncio.run(main())
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

    async def joined(member):  # of the version before
        return (await _joined(member))[1].removeprefix("in/").removesuffix(".ndjson")

    with monkeypatch.context() as patch:
        patch.setattr(Buckets, "write", killed)
        if not change:
            patch.setattr(buckets, "_joined", joined)
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

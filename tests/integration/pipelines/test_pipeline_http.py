"""Requests of pipelines: their key, what is sent again, and what never is."""

import json

import pytest

from commands import pipeline_runs
from web.answering import CUT, LOST, Answering


@pytest.fixture
def shop():
    made = Answering()
    yield made
    made.close()


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

"""Requests of pipelines: their key, what is sent again, and what never is."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from commands import pipeline_runs
from onceward.outbox import sender


class Shop:
    """A server that answers as it is told, and keeps what came."""

    def __init__(self):
        self.seen, self.answers = [], []
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                shop.seen.append((self.command, self.path, dict(self.headers), body))
                answer = shop.answers.pop(0) if shop.answers else (200, {"ok": True})
                if answer is None:  # the request was made, and its answer is lost
                    self.close_connection = True
                    return
                status, content = answer
                told = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Set-Cookie", f"session={len(shop.seen)}")
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            do_GET = do_POST = do_PUT = handle_one

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def keys(self):
        return [headers.get("Idempotency-Key") for _, _, headers, _ in self.seen]

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def shop():
    made = Shop()
    yield made
    made.stop()


@pytest.fixture
def pipeline(tmp_path):
    def make(parts, *messages):
        return pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", parts, messages)

    return make


def test_a_request_has_a_derived_key_and_its_answer_is_recorded(shop, pipeline):
    parts = f"""steps:
  - http:
      url: {shop.url}/orders/{{order}}/pay
      path: {{order: message.id}}
      query: {{currency: message.currency, note: message.note}}
      headers: {{Authorization: Bearer secret}}
    into: paid
sinks:
  - stdout:
"""
    file = pipeline(parts, {"id": "a/b c", "currency": "EUR"})
    (first,), (again,) = pipeline_runs.run(file), pipeline_runs.run(file)
    assert (
        first.value
        == again.value
        == [{"id": "a/b c", "currency": "EUR", "paid": {"status": 200, "body": {"ok": True}}}]
    )
    ((method, path, headers, body),) = shop.seen
    assert (method, path) == ("POST", "/orders/a%2Fb%20c/pay?currency=EUR")
    assert json.loads(body) == {"id": "a/b c", "currency": "EUR"}
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Idempotency-Key"].count('"') == 2


def test_a_cookie_of_one_message_goes_with_no_other(shop, pipeline):
    pipeline_runs.run(pipeline(f"concurrency: 1\nsteps:\n  - http: {{url: {shop.url}}}\n", {"id": 1}, {"id": 2}))
    assert [headers.get("Cookie") for _, _, headers, _ in shop.seen] == [None] * 2


def test_a_query_in_the_url_stays_beside_that_of_the_message(shop, pipeline):
    parts = f"steps:\n  - http:\n      url: {shop.url}/pay?account=7&mode=live\n      query: {{id: message.id}}\n"
    (outcome,) = pipeline_runs.run(pipeline(parts, {"id": 1}))
    assert outcome.status == "done"
    assert [path for _, path, _, _ in shop.seen] == ["/pay?account=7&mode=live&id=1"]


def test_a_request_without_an_answer_is_sent_again_with_its_key(shop, pipeline):
    shop.answers = [None, (503, {}), (200, {"ok": 1})]
    (outcome,) = pipeline_runs.run(pipeline(f"steps:\n  - http: {{url: {shop.url}/}}\n", {"id": 1}))
    assert outcome.status == "done"
    assert len(shop.seen) == 3
    assert len(set(shop.keys())) == 1


def test_the_next_attempt_has_the_same_key(shop, pipeline):
    shop.answers = [(500, {})]
    file = pipeline(f"steps:\n  - http: {{url: {shop.url}/}}\n", {"id": 1})
    assert [one.status for one in pipeline_runs.run(file)] == ["failed"]
    assert [one.status for one in pipeline_runs.run(file)] == ["done"]
    assert len(shop.seen) == 2
    assert len(set(shop.keys())) == 1


@pytest.mark.parametrize(("method", "times"), [("POST", 1), ("PUT", 2)])
def test_a_post_to_a_server_without_keys_is_never_sent_again(shop, pipeline, method, times):
    shop.answers = [None]
    parts = f"steps:\n  - http: {{url: {shop.url}/, method: {method}, key_header: null}}\n    on_lapse: park\n"
    file = pipeline(parts, {"id": 1})
    pipeline_runs.run(file)
    (outcome,) = pipeline_runs.run(file)
    assert outcome.status == ("parked" if method == "POST" else "replayed")
    assert len(shop.seen) == times
    assert shop.keys() == [None] * times


def test_a_refusal_was_certainly_not_made_so_the_key_is_not_parked(shop, pipeline):
    shop.answers = [(422, {"why": "no"})]
    file = pipeline(f"steps:\n  - http: {{url: {shop.url}/}}\n    on_lapse: park\n", {"id": 1})
    (failed,) = pipeline_runs.run(file)
    assert failed.status == "failed"
    assert "answered 422" in str(failed.error)
    assert [one.status for one in pipeline_runs.run(file)] == ["done"]


def test_a_refusal_after_a_lost_answer_may_have_been_made(shop, pipeline):
    shop.answers = [None, (422, {})]
    file = pipeline(f"steps:\n  - http: {{url: {shop.url}/}}\n    on_lapse: park\n", {"id": 1})
    pipeline_runs.run(file)
    assert [one.status for one in pipeline_runs.run(file)] == ["parked"]


def test_a_secret_in_a_query_is_in_no_record(shop, pipeline, tmp_path):
    shop.answers = [(422, {})]
    file = pipeline(f"steps:\n  - http: {{url: '{shop.url}/pay?token=secret-7'}}\n", {"id": 1})
    (failed,) = pipeline_runs.run(file)
    assert "answered 422" in str(failed.error)
    assert [one.status for one in pipeline_runs.run(file)] == ["done"]
    assert [path for _, path, _, _ in shop.seen] == ["/pay?token=secret-7"] * 2
    assert all(b"secret-7" not in part.read_bytes() for part in tmp_path.glob("ledger.db*"))


def test_a_value_that_would_leave_its_part_of_the_path_is_refused(shop, pipeline):
    parts = f"steps:\n  - http: {{url: '{shop.url}/a/{{id}}', path: {{id: message.id}}, method: GET}}\n"
    (outcome,) = pipeline_runs.run(pipeline(parts, {"id": ".."}))
    assert "cannot be a part of a path" in str(outcome.error)
    assert shop.seen == []


def test_a_sink_posts_when_the_key_is_completed(shop, pipeline):
    parts = f"sinks:\n  - http: {{url: {shop.url}/hook, message: message.body, headers: {{X-Id: message.id, X-No: message.no}}}}\n"
    file = pipeline(parts, {"id": 7, "body": {"a": 1}})
    pipeline_runs.run(file)
    pipeline_runs.run(file)
    assert sender.SENDER.drain(60) == 0
    ((_, path, headers, body),) = shop.seen
    assert (path, json.loads(body), headers["X-Id"]) == ("/hook", {"a": 1}, "7")
    assert "X-No" not in headers
    assert len(headers["Idempotency-Key"]) == 38

"""The source ``webhook``: an event is in the ledger before the answer, and is handled after, also by another process."""

import asyncio
import hashlib
import hmac
import json
import socket
import threading

import httpx
import pytest

from commands.pipeline_runs import opened
from onceward import Once
from onceward.core.record import PARKED
from onceward.pipelines.sources import inbox
from onceward.service.heads import TimedHeads
from tables import each
from waiting import until

PATIENCE = 60
TOKEN = {"Authorization": "Bearer t0ken"}


class Endpoint:
    """A pipeline that serves in a thread."""

    def __init__(self, pipelines, webhook, effect, more):
        pipelines.functions(f"def take(event):\n    {effect}\n")
        source = json.dumps({"webhook": {"port": 0, "path": "/hook", **webhook}})
        head = f"name: hooks\nsource: {source}\nbackoff: {{first: 0.05, longest: 0.05}}\n"
        pipelines.write("steps: [{call: {function: 'SHOP:take'}}]\n", head=head, guard=more)
        self.outcomes = []
        self.runs = opened(pipelines.load(), self.outcomes.append)
        self._thread = threading.Thread(target=lambda: asyncio.run(self.runs.run_async()))
        self._thread.start()
        until(lambda: self.runs.port)

    def post(self, body, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send(content, [(name.replace("_", "-"), text) for name, text in headers.items()])

    def send(self, content, headers):
        return httpx.post(f"http://127.0.0.1:{self.runs.port}/hook", content=content, headers=headers)

    def stop(self):
        self.runs.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def endpoint(pipelines):
    running = []

    def start(webhook=None, *, effect="made.append(event)", more=""):
        running.append(Endpoint(pipelines, webhook or {"token": "t0ken"}, effect, more))
        return running[-1]

    yield start
    for one in running:
        one.stop()


def test_an_event_with_a_key_is_accepted_and_takes_effect_once_and_another_body_is_refused(endpoint, pipelines):
    shop = endpoint()
    answers = [shop.post({"id": 7}, Idempotency_Key="order-7", **TOKEN).status_code for _ in range(3)]
    until(lambda: pipelines.made)
    assert answers[0] == 202
    assert set(answers) <= {200, 202}
    assert pipelines.made == [{"id": 7}]
    until(lambda: shop.outcomes)
    assert until(lambda: shop.post({"id": 8}, Idempotency_Key="order-7", **TOKEN)).status_code == 422
    assert pipelines.made == [{"id": 7}]
    assert {one.key for one in shop.outcomes} == {"hooks:order-7"}


@pytest.mark.slow
@each(
    ("headers", "body", "status"),
    [
        ({"Idempotency_Key": "k"}, b"{}", 401),
        ({"Idempotency_Key": "k", "Authorization": "Bearer other"}, b"{}", 401),
        (TOKEN, b"{}", 400),
        ([*TOKEN.items(), ("Idempotency-Key", "k"), ("Idempotency-Key", "l")], b"{}", 400),
        ({"Idempotency_Key": "k", **TOKEN}, b"{", 400),
        ({"Idempotency_Key": "k", **TOKEN}, b'"' + b"x" * 65_530 + b'"', 413),
    ],
)
def test_what_is_no_event_is_refused_and_not_recorded(endpoint, pipelines, headers, body, status):
    shop = endpoint()
    sent = shop.send(body, headers) if isinstance(headers, list) else shop.post(body, **headers)
    assert sent.status_code == status
    assert list(Once(pipelines.ledger).ledger.records()) == []


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /ho",
        b"POST /hook HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t0ken\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=["head", "body"],
)
def test_a_sender_that_stops_in_the_middle_is_not_waited_for(endpoint, monkeypatch, sent):
    monkeypatch.setattr(TimedHeads, "within", 0.2)
    monkeypatch.setattr(inbox, "_ARRIVAL", 0.2)
    shop = endpoint()
    with socket.create_connection(("127.0.0.1", shop.runs.port), timeout=PATIENCE) as connection:
        connection.sendall(sent)
        said = b"".join(iter(lambda: connection.recv(4096), b""))
    assert (b" 408 " in said) is (b"{" in sent)
    assert shop.post({"id": 7}, Idempotency_Key="k", **TOKEN).status_code == 202


def test_a_providers_event_is_verified_and_its_id_is_the_key(endpoint, pipelines):
    shop = endpoint({"provider": "github", "secret": "s3cret"}, effect="made.append(event)")
    body = json.dumps({"action": "opened"}).encode()
    signed = "sha256=" + hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()
    told = {"X_GitHub_Delivery": "d-1", "X_GitHub_Event": "issues"}
    assert shop.post(body, **told, X_Hub_Signature_256="sha256=00").status_code == 401
    assert shop.post(body, **told, X_Hub_Signature_256=signed).status_code == 202
    until(lambda: shop.outcomes)
    assert (pipelines.made, shop.outcomes[0].key) == ([{"action": "opened"}], "hooks:d-1")
    assert shop.outcomes[0].record.raw["kind"] == "issues"


def test_an_event_that_is_parked_is_kept_and_runs_when_it_is_unparked(endpoint, pipelines, tmp_path):
    effect = f"made.append(event)\n    import pathlib\n    assert pathlib.Path({str(tmp_path)!r}, 'fixed').exists()"
    shop = endpoint(effect=effect, more="guard: {key: message.id, attempts: 2}\n")
    shop.post({"id": 7}, Idempotency_Key="k", **TOKEN)
    once = Once(pipelines.ledger)
    until(lambda: once.ledger.stats()["PARKED"] == 2)
    assert {record.key for record, _ in once.ledger.records(status=PARKED)} == {"hooks:7", "hooks.webhook:k"}
    shop.stop()
    (tmp_path / "fixed").touch()
    once.ledger.unpark("hooks:7")
    once.ledger.unpark("hooks.webhook:k")
    asyncio.run(opened(pipelines.load()).run_async(until_empty=True))
    assert once.ledger.stats()["COMPLETED"] == 2
    once.close()


def test_a_stop_leaves_what_waits_to_others(endpoint, pipelines):
    shop = endpoint(effect="raise OSError", more="grace: 0.2\nguard: {key: message.id, lease: 2}\n")
    shop.post({"id": 7}, Idempotency_Key="k", **TOKEN)
    until(lambda: shop.outcomes)
    shop.stop()
    (record,) = [one for one, _ in Once(pipelines.ledger).ledger.records() if one.key == "hooks.webhook:k"]
    assert record.status == "IN_PROGRESS"
    assert record.input is not None

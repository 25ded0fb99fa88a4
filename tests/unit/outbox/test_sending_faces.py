"""Messages of handlers that are called by a face: of HTTP, and of Lambda, which answers after they are sent."""

import json
import re
import time

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import onceward
from onceward.aws import on_invoke, on_sqs
from onceward.outbox import drain, sender
from places import DOCS
from queues import lambda_events as events
from queues.boxes import record_of
from web.api_events import http, keyed
from web.calls import AsgiIdempotency, Rules, call, on_api, post
from web.scripted import Server, serve

ALL = Rules(record=lambda status: True)


def answers(box, how):
    """What an endpoint does after it has sent a message."""

    def endpoint(*_):
        onceward.current().send(box.address, 1)
        if how == "raises":
            raise ZeroDivisionError
        return int(how)

    return endpoint


ENDS = pytest.mark.parametrize(("how", "sent"), [("402", ["1"]), ("500", []), ("raises", [])])


@ENDS
def test_an_answer_of_an_asgi_application_decides(once, box, how, sent):
    endpoint = answers(box, how)

    async def place(_):
        return PlainTextResponse("", endpoint())

    app = AsgiIdempotency(Starlette(routes=[Route("/orders", place, methods=["POST"])]), once, ALL)
    if how == "raises":
        with pytest.raises(ZeroDivisionError):
            call(app, post("/orders", '"k"'))
    else:
        assert call(app, post("/orders", '"k"'), post("/orders", '"k"'))[1].status_code == int(how)
    assert drain(5) == 0
    assert box.bodies == sent


@ENDS
def test_an_answer_of_a_lambda_function_decides(once, box, how, sent):
    endpoint = answers(box, how)
    handler = on_api(once, ALL, name="n")(lambda event, _: {"statusCode": endpoint()})
    try:
        handler(keyed(http))
    except ZeroDivisionError:
        assert how == "raises"
    assert box.bodies == sent  # it was sent before the answer: now the process may be frozen


def test_an_invocation_sends_before_its_answer(once, box):
    @on_sqs(once, key="order.id", name="n")
    async def place(order):
        onceward.current().send(box.address, order["id"])

    event = {"Records": [events.sqs_record("m1", {"id": 1}), events.sqs_record("m2", {"id": 2})]}
    assert place(event, events.Context()) == {"batchItemFailures": []}
    assert sorted(box.bodies) == ["1", "2"]
    assert {record.unsent for record, _ in once.ledger.records()} == {None}


def test_an_invocation_with_little_time_left_does_not_wait(once, box):
    real, box.target.send = box.target.send, lambda messages: (time.sleep(2), real(messages))[1]

    @on_invoke(once, name="n")
    def place(order):
        onceward.current().send(box.address, order["id"])
        return "placed"

    assert place({"id": 1}, events.Context(1000)) == "placed"
    assert box.bodies == []
    assert record_of(once).unsent is not None
    assert drain(5) == 0
    assert box.bodies == ["1"]


TEXT = (DOCS / "reference" / "outbox.md").read_text(encoding="utf-8")


def test_the_examples_send_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {}
    with Server(serve(b"HTTP/1.1 204 No Content\r\n\r\n")) as hooks:
        text = re.sub(r"https://\w+\.example", hooks.url, TEXT)
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(block, space)
        assert sender.SENDER.drain(20) == 0
    posted = [(head.split(" ")[1], json.loads(content)) for head, content in hooks.requests]
    assert sorted(body["order"] for path, body in posted if path == "/orders") == [7, 7, 8]
    assert [body["to"] for path, body in posted if path == "/send"] == ["a@example.com", "b@example.com"]
    assert list(space["once"].ledger.records(status=["UNSENT", "REFUSED"])) == []
    space["connection"].close()
    space["once"].close()

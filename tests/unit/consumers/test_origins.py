"""From whose message a call came: every face that takes messages of the outbox notes it in the record, and hands it on."""

import json
from functools import partial

import pytest

import onceward
from fixtures import closing_fixture
from onceward import Once
from onceward.aws import on_eventbridge, on_kinesis, on_sns, on_sqs, on_sqs_fifo
from onceward.core.origin import CallOrigin, read_origin
from onceward.outbox import register, sender
from queues import lambda_events
from queues.boxes import RecordedTarget
from tables import each
from web import api_events
from web import asgi as asgi_client
from web import wsgi as wsgi_client
from web.calls import AsgiIdempotency, Rules, WsgiIdempotency, on_api

CAME = {"onceward-key": "from-outbox", "onceward-root": 'shop:"é"', "onceward-parent": "payments:1"}
ORIGIN = CallOrigin('shop:"é"', "payments:1")
ENCODED = {"onceward-root": "shop:%22%C3%A9%22", "onceward-parent": "payments:1"}
once = closing_fixture(lambda: Once("memory:", name="n"))


def noted(once):
    return {record.key: read_origin(record.origin) for record, _ in once.ledger.records()}


def sqs_attributes(headers):
    return {name: {"stringValue": value, "dataType": "String"} for name, value in headers.items()}


def sns_attributes(headers):
    return {name: {"Type": "String", "Value": value} for name, value in headers.items()}


def sqs_event(headers, group=None):
    record = lambda_events.sqs_record("m1", {"n": 1}, group=group)
    record["messageAttributes"] = sqs_attributes(headers)
    return {"Records": [record]}


def wrapped_event(headers):
    envelope = lambda_events.sns_envelope({"n": 1}) | {"MessageAttributes": sns_attributes(headers)}
    return {"Records": [lambda_events.sqs_record("m1", json.dumps(envelope))]}


def sns_event(headers):
    event = lambda_events.sns({"n": 1})
    event["Records"][0]["Sns"]["MessageAttributes"] = sns_attributes(headers)
    return event


def bus_event(headers):
    return lambda_events.eventbridge({"n": 1} | ({"onceward": headers} if headers else {}))


def stream_event(headers):
    return lambda_events.kinesis({"n": 1} | ({"onceward": headers} if headers else {}))


SOURCES = {
    "sqs": (on_sqs, sqs_event),
    "sqs fifo": (on_sqs_fifo, partial(sqs_event, group="g")),
    "sns in sqs": (partial(on_sqs, unwrap="sns"), wrapped_event),
    "sns": (on_sns, sns_event),
    "eventbridge": (on_eventbridge, bus_event),
    "kinesis": (on_kinesis, stream_event),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_message_of_the_outbox_has_its_key_and_its_origin(once, source):
    made, event = SOURCES[source]
    payloads = []

    @made(once)
    def handler(payload):
        payloads.append(payload)

    for _ in range(2):
        handler(event(CAME), lambda_events.Context())
    assert payloads == [{"n": 1}]
    assert [(key.partition(":")[2], origin) for key, origin in noted(once).items()] == [("from-outbox", ORIGIN)]


def test_a_message_of_anybody_else_has_neither(once):
    for name, (made, event) in SOURCES.items():
        made(once, name=name.replace(" ", "-"))(lambda payload: None)(event({}), lambda_events.Context())
    assert set(noted(once).values()) == {None}
    assert not any("from-outbox" in key for key in noted(once))
    payloads = []
    on_eventbridge(once)(payloads.append)(lambda_events.eventbridge({"onceward": {"mine": 1}}), lambda_events.Context())
    assert payloads == [{"onceward": {"mine": 1}}]  # a member of that name that is not ours is left alone


def test_each_kind_of_application_notes_where_a_request_comes_from():
    def asgi(once):
        headers = [(b"idempotency-key", b'"k"'), *((name.encode(), value.encode()) for name, value in ENCODED.items())]
        asgi_client.run(asgi_client.ask(AsgiIdempotency(asgi_client.Counter(), once, Rules()), headers=headers))

    def wsgi(once):
        more = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in ENCODED.items()}
        wsgi_client.ask(WsgiIdempotency(wsgi_client.Shop(), once, Rules()), **more)

    def gateway(once):
        handler = on_api(once, name="n")(lambda event, context: {"statusCode": 200, "body": "ok"})
        handler(api_events.keyed(api_events.http, *ENCODED.items()), lambda_events.Context())

    for ask in (asgi, wsgi, gateway):
        once = Once("memory:", name="n")
        ask(once)
        assert list(noted(once).values()) == [ORIGIN]


@each("parent", ["", "a%00b", "a" * 1025])
def test_a_header_that_cannot_be_a_key_is_no_origin(once, parent):
    app = WsgiIdempotency(wsgi_client.Shop(), once, Rules())
    wsgi_client.ask(app, HTTP_ONCEWARD_PARENT=parent)
    assert list(noted(once).values()) == [None]


def test_a_handlers_own_messages_pass_the_root_on(once):
    target = RecordedTarget()
    register("passed-on", lambda _: target)

    @on_sqs(once, name="ship")
    def handler(payload):
        onceward.current().send("passed-on:x", "hello")

    handler(sqs_event(CAME), lambda_events.Context())
    assert sender.SENDER.drain(10) == 0
    (message,) = target.sent
    assert message.headers == {"onceward-root": 'shop:"é"', "onceward-parent": "ship:from-outbox"}

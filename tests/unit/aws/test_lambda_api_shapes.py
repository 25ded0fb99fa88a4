"""The shapes of events and responses behind API Gateway, function URLs and load balancers, and whom a gateway has authenticated."""

import json
import re
import time

import pytest

from onceward import Once
from onceward.aws import MalformedEvent
from onceward.aws.events.api_event import answer_of, read, response_of
from onceward.web import Answer, Route, Scope
from places import DOCS
from tables import each
from web.api_events import Context, Shop, balancer, balancer_lines, header, http, keyed, rest, served, url
from web.asgi import records
from web.calls import Rules

pytestmark = pytest.mark.sampled(once=1)


def with_authorizer(event, authorizer):
    event["requestContext"]["authorizer"] = authorizer
    return event


CLAIMS = {"iss": "https://issuer", "sub": "{}"}

POOLED = {"userArn": "arn:aws:sts::1:assumed-role/pool/Cognito", "cognitoIdentity": {"identityId": "{}"}}


@each(
    ("source", "authorizer"),
    [
        (http, {"jwt": {"claims": CLAIMS, "scopes": []}}),
        (rest, {"claims": CLAIMS}),
        (http, {"iam": {"userArn": "arn:aws:iam::1:user/{}", "cognitoIdentity": None}}),
        (url, {"iam": {"userArn": "arn:aws:iam::1:user/{}"}}),
        (http, {"iam": POOLED}),
    ],
)
def test_whom_the_gateway_has_authenticated_is_the_scope(source, authorizer):
    handler = served(Once("memory:"), Shop(), Rules(scope=Scope.HOST))

    def ask(subject, token):
        told = json.loads(json.dumps(authorizer).replace('{}"', f'{subject}"'))
        return json.loads(handler(with_authorizer(keyed(source, ("Authorization", token)), told))["body"])["id"]

    signed = "AWS4-HMAC-SHA256 Signature="
    assert ask("ann", signed + "1") == ask("ann", signed + "2") == 1  # a new token or signature is the same caller
    assert ask("bob", signed + "1") == 2


def test_iam_users_of_a_rest_api_are_told_apart_and_a_lambda_authorizer_names_nobody(once, shop):
    handler = served(once, shop, Rules(scope=Scope.HOST))
    for arn, user in (("arn:a", None), ("arn:b", None), ("arn:a", "pool:1"), ("arn:a", None)):
        event = keyed(rest, ("Authorization", f"AWS4-HMAC-SHA256 {time.monotonic()}"))
        event["requestContext"]["identity"] |= {"userArn": arn, "cognitoIdentityId": user}
        handler(event)
    response = handler(with_authorizer(keyed(rest, ("Authorization", "Bearer a")), {"principalId": "user"}))
    assert (response["statusCode"], len(shop.effects)) == (400, 3)


@each("source", [rest, http, url])
def test_cookies_and_the_event_reach_the_scope(source):
    shop = Shop()
    handler = served(Once("memory:"), shop, Rules(scope="cookie:session"))
    handler(keyed(source, ("Cookie", "theme=dark"), ("Cookie", "session=1")))
    handler(keyed(source, ("Cookie", "session=1")))
    handler(keyed(source, ("Cookie", "session=2")))
    assert len(shop.effects) == 2
    native = served(Once("memory:"), shop, Rules(scope=lambda request: request.native["requestContext"]["apiId"]))
    assert [native(keyed(http))["statusCode"] for _ in range(2)] == [201, 201]
    assert len(shop.effects) == 3


def test_the_stage_is_no_part_of_an_http_apis_path(once, shop):
    handler = served(once, shop, Rules(Route("/orders")))
    event = http(path="/prod/orders")
    assert handler(event)["statusCode"] == 201  # $default is no stage in the path, so this is not covered
    event["requestContext"]["stage"] = "prod"
    assert handler(event)["statusCode"] == 400


@each(
    ("source", "value", "body"),
    [
        (http, {"message": "hi"}, '{"message": "hi"}'),
        (url, {"message": "hi"}, '{"message": "hi"}'),
        (url, "hi", '"hi"'),  # as its documentation shows: 15 bytes for "Hello, world!"
    ],
)
def test_a_response_that_is_inferred_is_replayed_as_its_client_got_it(source, value, body):
    handler = served(Once("memory:"), Shop(value))
    assert handler(keyed(source)) is value
    again = handler(keyed(source))
    assert (again["statusCode"], again["body"]) == (200, body)
    assert header(again, "content-type") == ["application/json"]


LINES = Answer(200, [("Vary", "Accept"), ("Vary", "DNT"), ("X", "1")], b"ok")


@each(
    ("source", "fields"),
    [
        (rest, {"headers": {"X": "1"}, "multiValueHeaders": {"Vary": ["Accept", "DNT"]}}),
        (http, {"headers": {"Vary": "Accept, DNT", "X": "1"}}),
        (url, {"headers": {"Vary": "Accept, DNT", "X": "1"}}),
        (balancer, {"headers": {"Vary": "Accept, DNT", "X": "1"}, "statusDescription": "200 OK"}),
        (balancer_lines, {"multiValueHeaders": {"Vary": ["Accept", "DNT"], "X": ["1"]}, "statusDescription": "200 OK"}),
    ],
)
def test_each_source_gets_headers_in_its_own_way(source, fields):
    shape, _, _ = read(source())
    response = response_of(shape, LINES)
    assert response == {"statusCode": 200, "body": "ok", "isBase64Encoded": False, **fields}
    if source in {rest, balancer_lines}:
        assert sorted(answer_of(shape, response).headers) == sorted(LINES.headers)


@each(
    "event",
    [
        None,
        [],
        {"Records": [{"eventSource": "aws:sqs"}]},
        {"version": "2.0"},
        {"requestContext": {"connectionId": "a", "eventType": "MESSAGE", "routeKey": "$default"}},  # a websocket's
        keyed(http, rawPath=None),
        keyed(rest) | {"multiValueHeaders": {"a": [1]}},
        keyed(rest, body="%%%", isBase64Encoded=True),
    ],
)
def test_malformed_events_are_told_before_anything_runs(once, shop, event):
    with pytest.raises(MalformedEvent, match="nothing has run"):
        served(once, shop)(event)
    assert shop.effects == []
    assert records(once) == []


TEXT = (DOCS / "reference" / "http.md").read_text(encoding="utf-8")


def test_the_documented_example_runs():
    example = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0]
    space = {"__name__": "example"}
    exec(example.replace("dynamodb://orders-ledger?region=eu-west-1", "memory:"), space)
    claims = {"jwt": {"claims": {"iss": "https://issuer", "sub": "ann"}}}
    first, again = (space["handler"](with_authorizer(keyed(http), claims), Context(10)) for _ in range(2))
    assert first["body"] == again["body"] == '{"ordered": "book"}'
    assert header(again, "idempotent-replayed") == ["true"]
    assert space["handler"](with_authorizer(keyed(http, path="/orders/7/refunds"), claims))["statusCode"] == 422
    assert space["handler"](keyed(http))["statusCode"] == 400
    assert space["handler"](http(path="/other"))["statusCode"] == 201

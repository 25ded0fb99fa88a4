"""Lambda functions behind API Gateway, function URLs and load balancers: one effect for each idempotency key."""

import asyncio
import base64
import copy
import inspect
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onceward.http.problem
from observing import told_of
from onceward import Busy, Claim, Once, StoreError
from onceward.aws import MalformedEvent
from onceward.aws.events.api_event import answer_of, read, response_of
from onceward.core.record import COMPLETED, PARKED, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing import Faults
from onceward.testing.faults import fail_before, settling, when
from onceward.web import Answer, Route, Scope
from places import DOCS
from tables import each
from timing import within
from web.api_events import BODY, balancer, balancer_lines, http, keyed, rest, url
from web.calls import Rules, on_api

pytestmark = pytest.mark.sampled(once=1)

SOURCES = [rest, http, url, balancer, balancer_lines]
source = pytest.mark.parametrize("source", SOURCES)


def header(response, name):
    """Return the values of a header of a response, whichever field holds it."""
    found = []
    for field in ("headers", "multiValueHeaders"):
        for held, value in response.get(field, {}).items():
            if held.lower() == name:
                found += value if isinstance(value, list) else [value]
    return found


def kind_of(response):
    assert header(response, "content-type") == ["application/problem+json"]
    assert response["isBase64Encoded"] is False
    return json.loads(response["body"])["type"].partition("#")[2]


class Context:
    """What Lambda gives besides the event."""

    def __init__(self, seconds):
        self._end = time.monotonic() + seconds

    def get_remaining_time_in_millis(self):
        return max(0, int((self._end - time.monotonic()) * 1000))


class Shop:
    """A function with an effect to count."""

    def __init__(self, *responses):
        self.effects = []
        self._responses = list(responses)

    def __call__(self, event, context=None):
        self.effects.append(event)
        if self._responses:
            response = self._responses.pop(0)
            if isinstance(response, Exception):
                raise response
            return response
        return {
            "statusCode": 201,
            "headers": {"Content-Type": "application/json", "Location": f"/orders/{len(self.effects)}"},
            "body": json.dumps({"id": len(self.effects)}),
            "isBase64Encoded": False,
        }


@pytest.fixture(params=["memory:", "sqlite"])
def once(request, tmp_path):
    store = "memory:" if request.param == "memory:" else f"sqlite:///{tmp_path}/ledger.db"
    once = Once(store)
    yield once
    once.close()


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def told():
    return []


def served(once, shop, rules=None, **options):
    return on_api(once, rules, name="shop", **options)(shop)


def records(once):
    return [record for record, _ in once.ledger.records()]


# --- the same in every shape ----------------------------------------------------------------------------------------


@source
def test_a_request_that_is_sent_again_takes_effect_once(once, shop, source):
    handler = served(once, shop)
    first = handler(keyed(source), Context(10))
    again = handler(keyed(source), Context(10))
    assert len(shop.effects) == 1
    assert first == {
        "statusCode": 201,
        "headers": {"Content-Type": "application/json", "Location": "/orders/1"},
        "body": '{"id": 1}',
        "isBase64Encoded": False,
    }
    assert (again["statusCode"], again["body"], again["isBase64Encoded"]) == (201, '{"id": 1}', False)
    assert header(again, "location") == ["/orders/1"]
    assert header(again, "idempotent-replayed") == ["true"]


@source
def test_another_payload_under_the_key_is_422(once, shop, source):
    handler = served(once, shop)
    handler(keyed(source))
    for changed in (
        keyed(source, body={**BODY, "price": 13}),
        keyed(source, path="/refunds"),
        keyed(source, method="PATCH"),
    ):
        response = handler(changed)
        assert (response["statusCode"], kind_of(response)) == (422, "reused")
    assert len(shop.effects) == 1


@source
def test_another_query_is_another_payload(once, shop, source):
    handler = served(once, shop)
    handler(keyed(source))
    other = keyed(source)
    for field in ("queryStringParameters", "multiValueQueryStringParameters"):
        if field in other:
            other[field] = {"c": "1"} if field == "queryStringParameters" else {"c": ["1"]}
    if "rawQueryString" in other:
        other["rawQueryString"] = "c=1"
    assert handler(other)["statusCode"] == 422


@source
def test_a_missing_key_is_400_and_nothing_runs(once, shop, source):
    response = served(once, shop)(source())
    assert (response["statusCode"], kind_of(response)) == (400, "missing")
    assert shop.effects == []


@pytest.mark.parametrize("source", [rest, http, url, balancer_lines])  # a plain load balancer tells the last line only
def test_two_keys_are_400(once, shop, source):
    response = served(once, shop)(source(headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")]))
    assert (response["statusCode"], kind_of(response)) == (400, "malformed")
    assert shop.effects == []


@source
def test_what_the_rules_do_not_cover_passes_straight_through(once, source):
    own = {"any": "thing"}
    shop = Shop(own, own)
    handler = served(once, shop)
    event = source(method="GET")
    assert handler(event) is own
    assert handler(event) is own
    assert shop.effects == [event, event]
    assert records(once) == []


@source
def test_another_tenant_with_the_same_key_never_sees_the_answer(once, shop, source):
    handler = served(once, shop, Rules(scope=Scope.CREDENTIAL))
    mine = handler(keyed(source, ("Authorization", "Bearer mine")))
    yours = handler(keyed(source, ("Authorization", "Bearer yours")))
    assert handler(keyed(source))["statusCode"] == 400
    assert [json.loads(r["body"])["id"] for r in (mine, yours)] == [1, 2]
    again = handler(keyed(source, ("Authorization", "Bearer mine")))
    assert json.loads(again["body"]) == {"id": 1}


@source
def test_a_5xx_is_given_back_and_the_retry_runs_again(once, source):
    failed = {"statusCode": 503, "headers": {"Retry-After": "1"}, "body": "later"}
    shop = Shop(failed)
    handler = served(once, shop)
    assert handler(keyed(source)) is failed
    assert [(r.status, r.error) for r in records(once)] == [(RELEASED, "Unrecorded: answered with status 503")]
    assert handler(keyed(source))["statusCode"] == 201
    assert handler(keyed(source))["statusCode"] == 201
    assert len(shop.effects) == 2


@source
def test_an_exception_gives_the_key_back_and_goes_on(once, source):
    shop = Shop(ZeroDivisionError("boom"))
    handler = served(once, shop)
    with pytest.raises(ZeroDivisionError):
        handler(keyed(source))
    assert handler(keyed(source))["statusCode"] == 201


@source
def test_bytes_come_back_as_they_were(once, source):
    image = bytes(range(256))
    shop = Shop({"statusCode": 200, "body": base64.b64encode(image).decode(), "isBase64Encoded": True})
    handler = served(once, shop)
    handler(keyed(source))
    again = handler(keyed(source))
    assert again["isBase64Encoded"] is True
    assert base64.b64decode(again["body"]) == image


@source
def test_a_base64_body_is_compared_by_what_it_encodes(once, shop, source):
    handler = served(once, shop)
    handler(keyed(source))
    encoded = base64.b64encode(json.dumps(BODY).encode()).decode()
    assert handler(keyed(source, body=encoded, isBase64Encoded=True))["statusCode"] == 201
    assert len(shop.effects) == 1


@source
def test_the_key_may_stand_in_the_body(once, shop, source):
    handler = served(once, shop, Rules(Route(key="body.payment.id")))
    body = {"payment": {"id": "p-1"}}
    handler(source(body=body))
    assert header(handler(source(body=body)), "idempotent-replayed") == ["true"]
    assert handler(source())["statusCode"] == 400
    assert len(shop.effects) == 1


@source
def test_cookies_are_not_replayed(once, source):
    shop = Shop(
        {
            "statusCode": 200,
            "headers": {"Set-Cookie": "a=1", "X-Kept": "1"},
            "multiValueHeaders": {"set-cookie": ["b=2"]},
            "cookies": ["c=3"],
            "body": "ok",
        }
    )
    handler = served(once, shop)
    handler(keyed(source))
    again = handler(keyed(source))
    assert header(again, "set-cookie") == []
    assert "cookies" not in again
    assert header(again, "x-kept") == ["1"]
    assert "cookie" not in records(once)[0].result.lower()


# --- concurrency, time ----------------------------------------------------------------------------------------------


class SlowShop(Shop):
    """One whose effect takes until it is told to go on."""

    def __init__(self):
        super().__init__()
        self.began, self.go_on = threading.Event(), threading.Event()

    def __call__(self, event, context=None):
        self.began.set()
        assert self.go_on.wait(30)
        return super().__call__(event, context)


@source
def test_a_concurrent_duplicate_is_409_and_told_when_to_come_back(once, source):
    shop = SlowShop()
    handler = served(once, shop)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(handler, keyed(source))
        assert shop.began.wait(30)
        busy = handler(keyed(source))
        shop.go_on.set()
        assert first.result(30)["statusCode"] == 201
    assert (busy["statusCode"], kind_of(busy)) == (409, "in-flight")
    assert 1 <= int(header(busy, "retry-after")[0]) <= 5
    assert len(shop.effects) == 1


@source
def test_a_concurrent_duplicate_may_wait_for_the_first_answer(once, source):
    shop = SlowShop()
    handler = served(once, shop, wait=30)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(handler, keyed(source))
        assert shop.began.wait(30)
        second = pool.submit(handler, keyed(source))
        time.sleep(0.05)  # so that the second is likely to be waiting; right either way
        shop.go_on.set()
        assert first.result(30)["body"] == second.result(30)["body"] == '{"id": 1}'
    assert header(second.result(), "idempotent-replayed") == ["true"]
    assert len(shop.effects) == 1


def test_nobody_waits_beyond_the_time_of_the_invocation(once):
    shop = SlowShop()
    handler = served(once, shop, wait=600)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(handler, keyed(http))
        assert shop.began.wait(30)
        assert within(1.3, lambda _: handler(keyed(http), Context(1.3)))["statusCode"] == 409
        shop.go_on.set()
        first.result(30)


def test_a_lease_ends_with_the_invocation(once):
    leases = []

    def shop(event, context, claim: Claim):
        held = claim.remaining
        time.sleep(0.4)
        leases.append((held, claim.renewal))
        return {"statusCode": 200}

    handler = on_api(once, name="shop", lease=900)(shop)
    handler(keyed(rest, key="a"), Context(20))
    handler(keyed(rest, key="b"))
    (held, renewal), (whole, _) = leases
    assert 15 < held <= 20.4
    assert 15 < renewal <= 20.1  # what is left of the time, not as much again
    assert whole > 800


def test_a_function_that_is_killed_leaves_the_key_to_the_next(once, shop):
    """Lambda stops a function that is out of time; what it leaves behind is a claim that nobody ends."""

    def killed(event, context):
        raise SystemExit

    with pytest.raises(SystemExit):
        served(once, killed, lease=900)(keyed(http), Context(0.2))
    handler = served(once, shop)
    assert handler(keyed(http))["statusCode"] == 409
    end = time.monotonic() + 30
    while (response := handler(keyed(http)))["statusCode"] == 409:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert response["statusCode"] == 201
    assert len(shop.effects) == 1


# --- coroutine functions --------------------------------------------------------------------------------------------


@source
def test_a_coroutine_function_is_served_the_same(once, shop, source):
    loops = []

    async def function(event, context):
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return shop(event)

    handler = served(once, function)
    first, again = handler(keyed(source)), handler(keyed(source))
    assert first["body"] == again["body"] == '{"id": 1}'
    assert header(again, "idempotent-replayed") == ["true"]
    assert handler(source(method="GET"))["body"] == '{"id": 2}'
    assert handler(source())["statusCode"] == 400
    assert len(set(loops)) == 1  # one loop for all invocations


def test_a_plain_function_that_returns_a_coroutine_is_refused_unrecorded(once):
    async def later():
        return {"statusCode": 200}

    def function(event, context):
        return later()

    with pytest.raises(TypeError, match="await"):
        served(once, function)(keyed(http))
    assert [r.status for r in records(once)] == [RELEASED]


# --- the claim ------------------------------------------------------------------------------------------------------


def test_a_function_may_have_its_claim(once):
    seen = []

    def function(event, context, claim: Claim | None):
        seen.append(claim and claim.attempt)
        return {"statusCode": 200}

    handler = served(once, function)
    handler(keyed(http))
    handler(http(method="GET"))
    assert seen == [1, None]


@source
def test_a_function_may_complete_its_claim_with_its_response(once, source):
    response = {"statusCode": 201, "headers": {"X-A": "1", "Set-Cookie": "a=1"}, "body": "made"}

    def function(event, context, claim: Claim):
        claim.complete(response)
        return response

    handler = served(once, function)
    assert handler(keyed(source)) is response
    again = handler(keyed(source))
    assert (again["statusCode"], again["body"]) == (201, "made")
    assert header(again, "idempotent-replayed") == ["true"]
    assert header(again, "set-cookie") == []


def test_an_answer_that_cannot_be_recorded_is_given_all_the_same(shop, caplog):
    handler = served(Once(Faults(MemoryStore(), when(settling, fail_before()))), shop, lease=0.5)
    assert handler(keyed(http))["statusCode"] == 201
    assert "could not be recorded" in caplog.text


# --- the policy -----------------------------------------------------------------------------------------------------


def test_a_parked_key_is_409_until_somebody_looks_at_it(once):
    shop = Shop({"statusCode": 500})
    handler = served(once, shop, max_attempts=1)
    handler(keyed(http))
    response = handler(keyed(http))
    assert (response["statusCode"], kind_of(response)) == (409, "stopped")
    assert header(response, "retry-after") == []
    assert [r.status for r in records(once)] == [PARKED]
    once.ledger.unpark(records(once)[0].key)
    assert handler(keyed(http))["statusCode"] == 201


def test_a_nested_guards_busy_is_the_functions_own_error(once):
    def function(event, context):
        raise Busy("another key", 1.0)

    handler = served(once, function)
    with pytest.raises(Busy):
        handler(keyed(http))


def test_a_ledger_that_cannot_be_reached_is_503_and_nothing_runs(shop, caplog):
    store = Faults(MemoryStore(), when(lambda ask: True, fail_before(lambda message: StoreError("the ledger is away"))))
    response = served(Once(store), shop)(keyed(http))
    assert (response["statusCode"], kind_of(response)) == (503, "unready")
    assert shop.effects == []
    assert "the ledger is away" in caplog.text


@source
def test_a_body_that_is_too_large_to_keep_is_409_for_the_duplicate(once, shop, source):
    handler = served(once, shop, Rules(max_response=5))
    assert handler(keyed(source))["statusCode"] == 201
    response = handler(keyed(source))
    assert (response["statusCode"], kind_of(response)) == (409, "unavailable")
    assert "status 201" in response["body"]
    assert len(shop.effects) == 1


def test_a_request_that_is_too_large_is_413(once, shop):
    assert served(once, shop, Rules(max_request=10))(keyed(http))["statusCode"] == 413
    assert shop.effects == []


@pytest.mark.parametrize(
    "response",
    [
        None,
        "text",
        {"body": "no status"},
        {"statusCode": 99},
        {"statusCode": "x"},
        {"statusCode": 200, "body": 7},
        {"statusCode": 200, "headers": [1]},
    ],
)
def test_a_function_whose_response_nobody_can_read_has_run_all_the_same(once, response):
    shop = Shop(response)
    handler = served(once, shop)
    assert handler(keyed(rest)) is response
    assert kind_of(handler(keyed(rest))) == "unavailable"
    assert len(shop.effects) == 1
    assert [r.status for r in records(once)] == [COMPLETED]


def test_events_are_told_by_route(once, told):
    shop = Shop({"statusCode": 503})
    rules = Rules(Route("/orders/{id}"), Route("*"))
    handler = served(told_of(once, told), shop, rules)
    for event in (keyed(http, path="/orders/7"), keyed(http, path="/orders/7"), keyed(http, path="/orders/7")):
        handler(event)
    handler(keyed(http, path="/orders/7", body="other"))
    handler(http(path="/orders/7"))
    handler(keyed(http, path="/x", key="k"))
    route = "POST /orders/{id}"
    assert told == [
        *[(kind, route) for kind in ("claimed", "failed", "claimed", "completed", "replayed", "mismatch")],
        *[(kind, "POST *") for kind in ("claimed", "completed")],
    ]


# --- who the caller is ----------------------------------------------------------------------------------------------


def with_authorizer(event, authorizer):
    event["requestContext"]["authorizer"] = authorizer
    return event


@pytest.mark.parametrize(
    ("source", "authorizer"),
    [
        (http, lambda sub: {"jwt": {"claims": {"iss": "https://issuer", "sub": sub}, "scopes": []}}),
        (rest, lambda sub: {"claims": {"iss": "https://issuer", "sub": sub}}),
        (http, lambda sub: {"iam": {"userArn": f"arn:aws:iam::1:user/{sub}", "cognitoIdentity": None}}),
        (url, lambda sub: {"iam": {"userArn": f"arn:aws:iam::1:user/{sub}"}}),
        (
            http,
            lambda sub: {
                "iam": {
                    "userArn": "arn:aws:sts::1:assumed-role/pool/CognitoIdentityCredentials",
                    "cognitoIdentity": {"identityId": sub},
                }
            },
        ),
    ],
)
def test_whom_the_gateway_has_authenticated_is_the_scope(once, shop, source, authorizer):
    handler = served(once, shop, Rules(scope=Scope.HOST))

    def ask(subject, token):
        event = with_authorizer(keyed(source, ("Authorization", token)), authorizer(subject))
        return json.loads(handler(event)["body"])["id"]

    signed = "AWS4-HMAC-SHA256 Signature="
    assert ask("ann", signed + "1") == ask("ann", signed + "2") == 1  # a new token or signature is the same caller
    assert ask("bob", signed + "1") == 2


def test_iam_users_of_a_rest_api_are_told_apart(once, shop):
    handler = served(once, shop, Rules(scope=Scope.HOST))
    for arn, user in (("arn:a", None), ("arn:b", None), ("arn:a", "pool:1"), ("arn:a", None)):
        event = keyed(rest, ("Authorization", f"AWS4-HMAC-SHA256 {time.monotonic()}"))
        event["requestContext"]["identity"] |= {"userArn": arn, "cognitoIdentityId": user}
        handler(event)
    assert len(shop.effects) == 3


def test_a_lambda_authorizer_tells_nothing_that_is_sure_to_be_one_caller(once, shop):
    handler = served(once, shop, Rules(scope=Scope.HOST))
    response = handler(with_authorizer(keyed(rest, ("Authorization", "Bearer a")), {"principalId": "user"}))
    assert (response["statusCode"], shop.effects) == (400, [])


@pytest.mark.parametrize("source", [rest, http, url])
def test_cookies_reach_the_scope(once, shop, source):
    handler = served(once, shop, Rules(scope="cookie:session"))
    handler(keyed(source, ("Cookie", "theme=dark"), ("Cookie", "session=1")))
    handler(keyed(source, ("Cookie", "session=1")))
    handler(keyed(source, ("Cookie", "session=2")))
    assert len(shop.effects) == 2
    credential = served(once, shop, Rules(scope=Scope.CREDENTIAL))
    assert credential(keyed(source, ("Cookie", "session=1")))["statusCode"] == 400


def test_a_scope_may_look_at_the_event(once, shop):
    rules = Rules(scope=lambda request: request.native["requestContext"]["apiId"])
    handler = served(once, shop, rules)
    handler(keyed(http))
    handler(keyed(http))
    assert len(shop.effects) == 1


# --- paths, responses -----------------------------------------------------------------------------------------------


def test_the_stage_is_no_part_of_an_http_apis_path(once, shop):
    handler = served(once, shop, Rules(Route("/orders")))
    event = http(path="/prod/orders")
    event["requestContext"]["stage"] = "prod"
    assert handler(event)["statusCode"] == 400
    assert (
        handler(http(path="/prod/orders"))["statusCode"] == 201
    )  # $default is no stage in the path, so this is not covered


@pytest.mark.parametrize(
    ("source", "value", "body"),
    [
        (http, {"message": "hi"}, '{"message": "hi"}'),
        (url, {"message": "hi"}, '{"message": "hi"}'),
        (http, "hi", "hi"),
        (url, "hi", '"hi"'),  # as its documentation shows: 15 bytes for "Hello, world!"
        (http, [1, None], "[1, null]"),
    ],
)
def test_a_response_that_is_inferred_is_replayed_as_its_client_got_it(once, source, value, body):
    shop = Shop(value)
    handler = served(once, shop)
    assert handler(keyed(source)) is value
    again = handler(keyed(source))
    assert (again["statusCode"], again["body"]) == (200, body)
    assert header(again, "content-type") == ["application/json"]


LINES = Answer(200, [("Vary", "Accept"), ("Vary", "Origin"), ("X", "1")], b"ok")


@each(
    ("source", "fields"),
    [
        (rest, {"headers": {"X": "1"}, "multiValueHeaders": {"Vary": ["Accept", "Origin"]}}),
        (http, {"headers": {"Vary": "Accept, Origin", "X": "1"}}),
        (url, {"headers": {"Vary": "Accept, Origin", "X": "1"}}),
        (balancer, {"headers": {"Vary": "Accept, Origin", "X": "1"}, "statusDescription": "200 OK"}),
        (
            balancer_lines,
            {"multiValueHeaders": {"Vary": ["Accept", "Origin"], "X": ["1"]}, "statusDescription": "200 OK"},
        ),
    ],
)
def test_each_source_gets_headers_in_its_own_way(source, fields):
    shape, _, _ = read(source())
    response = response_of(shape, LINES)
    assert response == {"statusCode": 200, "body": "ok", "isBase64Encoded": False, **fields}
    if source in {rest, balancer_lines}:
        assert sorted(answer_of(shape, response).headers) == sorted(LINES.headers)


def test_headers_in_both_fields_count_once():
    shape, _, _ = read(rest())
    response = {
        "statusCode": "200",
        "headers": {"A": "1", "B": True, "C": 3},
        "multiValueHeaders": {"A": ["1", "2"]},
    }
    assert answer_of(shape, response) == Answer(200, [("A", "1"), ("A", "2"), ("B", "true"), ("C", "3")], b"")


@given(
    st.sampled_from(SOURCES),
    st.integers(200, 599),
    st.dictionaries(
        st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1), st.text(max_size=5), max_size=4
    ),
    st.binary(max_size=50),
)
def test_any_answer_survives_each_shape(source, status, headers, body):
    shape, _, _ = read(source())
    answer = Answer(status, list(headers.items()), body)
    assert answer_of(shape, response_of(shape, answer)) == answer
    json.dumps(response_of(shape, answer))


# --- malformed events -----------------------------------------------------------------------------------------------


@each(
    "event",
    [
        None,
        [],
        "text",
        {},
        {"Records": [{"eventSource": "aws:sqs"}]},
        {"version": "2.0"},
        {"requestContext": {"connectionId": "a", "eventType": "MESSAGE", "routeKey": "$default"}},  # a websocket's
        {"httpMethod": "POST"},
        keyed(http, rawPath=None),
        keyed(http) | {"headers": {"a": 1}},
        keyed(rest) | {"multiValueHeaders": {"a": [1]}},
        keyed(rest, body="%%%", isBase64Encoded=True),
        keyed(rest, body="ü", isBase64Encoded=True),
        keyed(rest) | {"body": {"a": 1}},
    ],
)
def test_malformed_events_are_told_before_anything_runs(once, shop, event):
    with pytest.raises(MalformedEvent, match="nothing has run"):
        served(once, shop)(event)
    assert shop.effects == []
    assert records(once) == []


def test_what_the_console_sends_as_null_is_nothing():
    event = rest(method="GET", body=None) | {
        "headers": None,
        "multiValueHeaders": None,
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
    }
    _, request, body = read(event)
    assert (request.headers, request.query, body) == ([], "", b"")


def paths_of(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from paths_of(inner, (*path, name))


JUNK = st.one_of(
    # made anew each time, for they are put into the event, and could come to contain themselves
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: [None]),
)


@given(st.sampled_from(SOURCES), st.data())
def test_no_mutation_of_an_event_raises_anything_else(source, data):
    event = copy.deepcopy(keyed(source, ("Cookie", "a=b"), ("Authorization", "Bearer a")))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(paths_of(event))))
        if not path:
            continue
        holder = event
        for name in path[:-1]:
            holder = holder[name]
        if isinstance(holder, dict) and data.draw(st.booleans()):
            del holder[path[-1]]
        else:
            holder[path[-1]] = data.draw(JUNK)
    shop = Shop()
    handler = served(Once("memory:"), shop)
    try:
        first, again = handler(event), handler(event)
    except MalformedEvent:
        assert shop.effects == []
    else:
        assert first["body"] == again["body"] or len(shop.effects) == 2  # not covered any more, such as a GET


# --- options --------------------------------------------------------------------------------------------------------


def test_bad_options_are_refused_when_decorating(once, shop):
    with pytest.raises(TypeError, match="wait=SECONDS"):
        on_api(once, on_busy="skip")
    with pytest.raises(ValueError, match="wait=SECONDS"):
        on_api(Once("memory:", on_busy="skip"), name="shop")(shop)
    with pytest.raises(ValueError, match="wait=-1"):
        on_api(once, name="shop", wait=-1)(shop)
    with pytest.raises(ValueError, match="lambda"):
        on_api(once)(lambda event, context: None)


# --- the documentation ----------------------------------------------------------------------------------------------

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


def test_every_option_is_documented():
    options = {*inspect.signature(onceward.web.Rules).parameters, *inspect.signature(Route).parameters}
    assert {name for name in options if not re.search(rf"`{name}`|\b{name}=", TEXT)} == {
        "routes",
        "path",
    }  # their places say it


@source
@pytest.mark.parametrize("path", ["/%6Frders", "/gr%C3%B6%C3%9Fen"])
def test_a_path_that_comes_percent_encoded_is_guarded(once, source, path):
    runs = []

    @on_api(once, Rules(Route("/orders"), Route("/größen")))
    def handler(event, context):
        runs.append(event)
        return {"statusCode": 201}

    event = source(path, headers=[("Idempotency-Key", "k")])
    assert [handler(event, None)["statusCode"] for _ in range(2)] == [201, 201]
    assert runs == [event]


def test_a_response_with_an_http_status_is_replayed(once):
    @on_api(once)
    def handler(event, context):
        return {"statusCode": HTTPStatus.CREATED, "body": "made"}

    event = {"httpMethod": "POST", "path": "/", "headers": {"idempotency-key": "k"}, "body": None}
    assert [(answer["statusCode"], answer["body"]) for answer in (handler(event), handler(event))] == [
        (201, "made")
    ] * 2

"""What is compared of a request, whose key it is, which answers are recorded, and what a client is told."""

import base64
import gzip
import json
import math
import os
import re
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Once, errors, web
from onceward.http.answer import Recorded, bodiless, recorded, replay
from onceward.http.body import fingerprint
from onceward.http.guarded import Guarded
from onceward.http.route import KeyedRequest, PendingRequest
from onceward.keys.ledger_keys import scoped_key
from onceward.results.codec import Codec
from onceward.web import Answer, Route, Scope
from tables import each
from web.calls import Rules
from web.rules import GZIP, JSON, UUID, asked, fields, keyed, kind_of, post, problem

READ = {"capture_output": True, "text": True, "check": True}


def printed(fingerprint, body=b"{}", path="/orders", **more):
    return asked(Rules(fingerprint=fingerprint), keyed(path=path, **more), body).fingerprint


def test_all_of_a_request_is_compared_unless_only_its_path_is():
    assert printed("all") == fingerprint(keyed(), b"{}") != printed("all", b"[]")
    assert printed("path") == printed("path", b"[]", query="a=1") != printed("path", path="/refunds")
    assert printed("path") != printed("path", method="PATCH")


@each("kind", [str, bytes, lambda value: [value], lambda value: {"amount": value}])
def test_what_is_compared_may_be_chosen(kind):
    def amount(request, body):
        return kind(str(json.loads(body)["amount"]).encode() if kind is bytes else json.loads(body)["amount"])

    one = printed(amount, b'{"amount": 5, "sent": 1}')
    assert one == printed(amount, b'{"amount": 5, "sent": 2}') != printed(amount, b'{"amount": 6, "sent": 1}')
    assert one != printed(amount, b'{"amount": 5, "sent": 1}', path="/refunds")


def print_of(body=b"", *headers, **more):
    return fingerprint(post("/orders", *headers, **more), body)


def test_method_path_query_and_body_are_in_the_fingerprint():
    prints = [print_of(b"a"), print_of(b"b"), print_of(b"a", query="x=1"), print_of(b"a", method="PATCH")]
    prints += [fingerprint(post("/refunds"), b"a"), print_of(b"")]
    assert len(set(prints)) == len(prints)
    assert print_of(b"a", ("user-agent", "x"), ("date", "1")) == fingerprint(post("//orders/"), b"a") == prints[0]


@each(
    ("one", "other"),
    [
        (b'{"a": {"c": 1, "b": [1, 2]}}', b'{"a": {"b":[1,2], "c": 1}}'),
        (b'"\\u00fc"', '"ü"'.encode()),
        (b"100", b"1e2"),
        (b"0", b"-0.0"),
    ],
)
def test_json_that_says_the_same_has_one_fingerprint(one, other):
    assert print_of(one, JSON) == print_of(other, JSON)
    assert print_of(one) != print_of(other)  # not called JSON: byte by byte


@each(
    ("one", "other"),
    [
        (b"[1, 2]", b"[2, 1]"),
        (b"1", b'"1"'),
        (b"null", b""),
        (b"true", b"1"),
        (b"0.1", b"0.1000000000000000055511151231257827"),  # one float, two amounts
        (b"9007199254740993", b"9007199254740992.0"),
        (b"18446744073709551617", b"18446744073709551616"),
        (b"1e400", b"1e401"),
        (b"1e99999999999999999999", b"1e99999999999999999998"),
        (b'"\\ud800"', b'"\\ud801"'),
    ],
)
def test_json_that_says_something_else_has_another_fingerprint(one, other):
    assert print_of(one, JSON) != print_of(other, JSON)


def test_what_is_json_is_told_by_its_type():
    kinds = "application/json", "application/json; charset=utf-8", "application/vnd.api+json", "Application/JSON"
    for kind in (*kinds, "text/plain", "application/jsonl", "application/json-seq", "text/json5"):
        one, other = (print_of(body, ("content-type", kind)) for body in (b"[1, 2]", b"[1,2]"))
        assert (one == other) is (kind in kinds)


def test_a_multipart_body_is_compared_without_its_boundary():
    def of(boundary, value, header="multipart/form-data; boundary={}"):
        body = f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n{value}\r\n--{boundary}--\r\n'
        return print_of(body.encode(), ("content-type", header.format(boundary)))

    assert of("x1", "v") == of("y2", "v") == of("z 3", "v", 'multipart/form-data; charset=utf-8; boundary="{}"')
    assert of("x1", "v") != of("x1", "w")


def test_outcomes_are_recorded_and_what_may_pass_is_not():
    assert all(map(Rules().records, [200, 201, 204, 302, 303, 400, 402, 404, 409, 422]))
    assert not any(map(Rules().records, [307, 308, 408, 425, 429, 500, 502, 503, 504, 599]))
    assert [Rules(record=[200]).records(status) for status in (200, 201)] == [True, False]
    assert Rules(record=lambda status: True).records(500)
    assert Rules(record=range(200, 300)).records(201)


def test_a_replay_has_status_headers_and_body_without_cookies_and_hop_by_hop_headers_and_says_so():
    answer = Answer(201, [("Content-Type", "text/plain"), ("Location", "/orders/7")], b"made")
    assert replay(recorded(answer)) == Answer(201, [*answer.headers, ("Idempotent-Replayed", "true")], b"made")
    hops = {"Transfer-Encoding": "chunked", "Connection": "close, X-Hop", "X-Hop": "1", "Keep-Alive": "timeout=5"}
    own = {"Content-Length": "4", "Trailer": "X", "Idempotent-Replayed": "true", "Set-Cookie": "a=1", "Date": "Sat"}
    kept = (("ETag", '"a"'), ("Vary", "Accept"), ("Vary", "Origin"))
    assert recorded(Answer(200, [*hops.items(), *own.items(), *kept])).headers == kept


@each("body", [b"", b'{"a": "\xc3\xbc"}', b"\x00", b"\xff\x00\xfe", bytes(range(256))])
def test_an_answer_comes_back_from_the_ledger_as_it_was(body):
    codec = Codec(Recorded)
    kept = recorded(Answer(200, [("x", "\xe9")], body))
    back = codec.decode(codec.encode(kept))
    assert back == kept
    assert replay(back).body == body
    readable = json.loads(codec.encode(recorded(Answer(201, [("a", "b")], b'{"id": 7}'))))
    assert readable == {"status": 201, "headers": [["a", "b"]], "body": '{"id": 7}'}


def test_a_body_over_the_limit_or_the_ledgers_is_recorded_without_it_and_duplicate_is_told():
    rules = Rules(max_response=3)
    kept = rules.keep(Answer(201, [("a", "b")], b"1234"), 10**6)
    assert kept == bodiless(201, [("a", "b")], "its body has more than 3 bytes")
    answer = rules.repeat(kept)
    assert (answer.status, kind_of(answer)) == (409, "unavailable")
    assert "status 201" in problem(answer)["detail"]
    large = Answer(200, [], b"\xff" * 800)  # in base64 more than the ledger takes
    assert Rules().keep(large, 1000).missing is not None
    assert Rules().keep(large, 10_000) == recorded(large)


@each(
    ("error", "status", "kind"),
    [
        (errors.Busy("k", 40.0, "secret-host/1"), 409, "in-flight"),
        (errors.LeaseLost("k", "record its result"), 409, "in-flight"),
        (errors.Mismatch("k"), 422, "reused"),
        (errors.Parked("k-secret", 3, "secret", "secret-host/1"), 409, "stopped"),
        (errors.ResultUnavailable("secret", "secret"), 409, "unavailable"),
        (errors.StoreError("secret", transient=True), 503, "unready"),
        (errors.StoreError("no such table of secret"), 503, "unready"),
    ],
)
def test_each_refusal_has_its_answer(error, status, kind):
    answer = Rules().refusal(error)
    assert (answer.status, kind_of(answer)) == (status, kind)
    problem(answer)
    assert b"secret" not in answer.body  # nothing of the ledger is told to clients
    assert kind in {"in-flight", "unready"} or "retry-after" not in fields(answer)  # waiting does not help


@each(("left", "after"), [(0.0, "1"), (0.2, "1"), (2.1, "3"), (60.0, "5")])
def test_a_busy_key_says_when_to_come_back(left, after):
    answer = Rules().refusal(errors.Busy("k", left))
    assert fields(answer)["retry-after"] == after
    assert int(after) >= min(5, math.ceil(left))


def test_an_answer_that_could_not_be_recorded_reaches_its_client_and_log(caplog):
    guarded = Guarded(Once("memory:"), Rules(), {"name": "shop"}, "")
    assert guarded.refusal(errors.ResultNotRecorded("k", None, "the store is away"), "POST /orders", done=True) is None
    assert "the store is away" in caplog.text
    for error in (errors.Reentrant("k"), ZeroDivisionError()):
        with pytest.raises(type(error)):
            guarded.refusal(error, "POST /orders")


ORDER = b'{"amount": 5, "id": "k"}'


def mark_of(body, *headers):
    return asked(Rules(), keyed(UUID, *headers), body).fingerprint


def test_a_body_that_is_compressed_again_is_the_same_body():
    first = mark_of(gzip.compress(ORDER, 1, mtime=1), JSON, GZIP)
    assert first == mark_of(gzip.compress(ORDER, 9, mtime=2), JSON, GZIP) == mark_of(ORDER, JSON)
    assert first == mark_of(gzip.compress(ORDER[:5]) + gzip.compress(ORDER[5:]), JSON, GZIP)
    assert first == mark_of(zlib.compress(ORDER), JSON, ("content-encoding", "deflate"))
    assert first != mark_of(gzip.compress(b'{"amount": 6, "id": "k"}'), JSON, GZIP)
    for body in (b"not gzip", gzip.compress(ORDER)[:-4], gzip.compress(ORDER) + b"more"):
        assert mark_of(body, GZIP) == mark_of(body)  # what cannot be decoded is compared as it is


CREDENTIAL = Rules(scope=Scope.CREDENTIAL)


def scope_of(request, scope=Scope.CREDENTIAL):
    return asked(Rules(scope=scope), request).key[-1]


def test_a_scope_that_was_not_chosen_is_refused_with_the_choices():
    with pytest.raises(TypeError, match=r"^scope=None: .*Scope\.CREDENTIAL.*django_user.*Scope\.EVERYBODY"):
        web.Rules(Route("/orders"), scope=None)


def test_another_authorization_is_another_scope():
    mine, yours = (scope_of(keyed(UUID, ("authorization", f"Bearer {token}"))) for token in ("mine", "yours"))
    assert mine == scope_of(keyed(UUID, ("authorization", "Bearer mine"))) != yours
    assert scope_of(keyed(UUID, ("x-api-key", "a"))) != scope_of(keyed(UUID, ("x-api-key", "b")))
    key = asked(CREDENTIAL, keyed(UUID, ("authorization", "Bearer secret-token"))).key
    assert "secret" not in scoped_key("orders", key)


def test_a_credential_may_be_in_other_headers():
    scope = Scope.credential("X-Auth-Token", "Api-Key")
    assert scope_of(keyed(UUID, ("x-auth-token", "a")), scope) != scope_of(keyed(UUID, ("api-key", "a")), scope)
    assert kind_of(Rules(scope=scope).begin(keyed(UUID, ("authorization", "Bearer a")))) == "unscoped"
    with pytest.raises(ValueError, match="give the names of headers"):
        Scope.credential()


def test_a_caller_of_several_headers_is_the_same_one_in_each_process():
    code = (
        "from onceward.http.request import Request\nfrom onceward.web import Scope\n"
        "lines = {'x-a': '1', 'x-b': '2', 'x-c': '3', 'x-d': '4'}\n"
        "print(Scope.credential(*lines)(Request('POST', '/', headers=[*lines.items()])))"
    )
    seeds = map(str, range(4))
    runs = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": s}, **READ) for s in seeds
    ]
    assert len({run.stdout for run in runs}) == 1
    assert re.fullmatch("[0-9a-f]{32}\n", runs[0].stdout)


def test_requests_without_a_credential_share_no_scope_but_are_refused():
    bare = [(("authorization", line),) for line in ("", " ", "Bearer", "bearer ", "Basic", "Token")]
    cookie = ("cookie", "session=1")
    of_a_page = (("x-api-key", "of all users of a page"), cookie)
    for headers in ((), (("x-auth-token", "a"),), (("x-api-key", " "),), (cookie,), of_a_page, *bare):
        answer = CREDENTIAL.begin(keyed(UUID, *headers))
        assert (answer.status, kind_of(answer)) == (400, "unscoped")


@each(
    "value",
    [
        "AWS4-HMAC-SHA256 Credential=AKID/20261121/eu-west-1/execute-api/aws4_request, SignedHeaders=host, Signature=ab",
        'Digest username="Mufasa", nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", nc=00000001',
        'OAuth oauth_nonce="kllo9940pd9333jh", oauth_timestamp="1191242096"',
        "Negotiate YII",
        "SharedKey me:c2ln",
        "Digest\tusername=x",
    ],
)
def test_credentials_that_are_new_each_time_are_refused(value):
    answer = CREDENTIAL.begin(keyed(UUID, ("authorization", value)))
    assert (answer.status, kind_of(answer)) == (400, "unscoped")
    assert isinstance(asked(Rules(scope=Scope.EVERYBODY), keyed(UUID, ("authorization", value))), KeyedRequest)


def token(**claims):
    parts = b'{"alg":"none"}', json.dumps(claims).encode(), b"s"
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def test_a_long_text_that_looks_like_many_tokens_holds_up_nobody():
    scope_of(keyed(UUID, ("authorization", "Bearer " + "-eyJ" * 100_000)))  # this took minutes


def test_a_token_that_may_expire_is_warned_of_once(caplog):
    rules = Rules(scope=Scope.credential("Authorization"))
    for opaque in ("Bearer abc", "Bearer a.b.c", "Basic YTpi"):
        rules.begin(keyed(UUID, ("authorization", opaque)))
    assert caplog.text == ""
    for exp in (1, 2):
        assert isinstance(rules.begin(keyed(UUID, ("authorization", f"Bearer {token(exp=exp)}"))), PendingRequest)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "renews its token" in caplog.text
    assert token(exp=1) not in caplog.text


def test_the_caller_may_be_whom_the_host_has_authenticated():
    one = scope_of(keyed(UUID, ("authorization", "Bearer first"), identity="https://issuer 7"), Scope.HOST)
    renewed = scope_of(keyed(UUID, ("authorization", "Bearer second"), identity="https://issuer 7"), Scope.HOST)
    assert one == renewed
    assert one != scope_of(keyed(UUID, ("authorization", "Bearer first"), identity="https://issuer 8"), Scope.HOST)
    assert kind_of(Rules(scope=Scope.HOST).begin(keyed(UUID, ("authorization", "Bearer first")))) == "unscoped"


def test_a_scope_may_be_a_header():
    a, b = (scope_of(keyed(UUID, ("x-tenant", tenant)), "header:X-Tenant") for tenant in "ab")
    assert a == scope_of(keyed(UUID, ("x-tenant", "a")), "header:x-tenant") != b
    for headers in ((), (("x-tenant", ""), ("x-tenant", ""))):
        assert kind_of(Rules(scope="header:X-Tenant").begin(keyed(UUID, *headers))) == "unscoped"


def test_a_scope_may_be_a_cookie_and_one_planted_by_another_site_is_not_the_caller():
    def of(line):
        return scope_of(keyed(UUID, ("cookie", line)), scope="cookie:session")

    assert of("session=1; theme=dark") == of("theme=light; session=1") == of("session=1; session=1") != of("session=2")
    assert len({of("session=planted; session=own"), of("session=planted"), of("session=own")}) == 3
    assert Rules(scope="cookie:session").begin(keyed(UUID, ("cookie", "sessions=1"))).status == 400


def in_ledger(key, scope, body=b""):
    rules = Rules(Route(key="body.id") if body else Route(), scope=lambda _: scope)
    return scoped_key("shop", asked(rules, keyed(key), body).key)


def test_a_key_in_the_ledger_begins_with_the_clients_own():
    first, second = (asked(Rules(), keyed(UUID, ("authorization", who))) for who in ("Basic a", "Basic b"))
    assert scoped_key("shop", first.key) == scoped_key("shop", second.key) == f"shop:{UUID}:*", "everybody's"
    assert in_ledger(UUID, 7) == f"shop:{UUID}:7"
    assert in_ledger('"a b"', "ann") == 'shop:"a b":ann'
    assert in_ledger("k", ("acme", 7)) == "shop:k:(acme,7)"
    assert in_ledger("", "ann", b'{"id": 12}') == "shop:12:/orders:ann"
    assert in_ledger("", "ann", b'{"id": ["a", 12]}') == "shop:(a,12):/orders:ann"
    long = "k" * 255
    assert in_ledger(long, "ann") == f"shop:{long}:ann"
    assert in_ledger(f'"{long[1:]} "', "ann").startswith('shop:"kkk')
    assert re.fullmatch("shop:sha256:[0-9a-f]{64}:ann", scoped_key("shop", ("k" * 700, "ann")))
    assert re.fullmatch("shop:k:sha256:[0-9a-f]{64}", in_ledger("k", "a" * 300))


@given(*[st.lists(st.text(min_size=1).filter(str.strip) | st.integers(), min_size=2, max_size=3)] * 2)
def test_no_parts_share_a_key_with_other_parts(one, other):
    one, other = ([parts[0], *["/" + str(p) for p in parts[2:]], parts[1]] for parts in (one, other))
    same = [(type(p), p) for p in one] == [(type(p), p) for p in other]
    assert (scoped_key("n", one) == scoped_key("n", other)) == same

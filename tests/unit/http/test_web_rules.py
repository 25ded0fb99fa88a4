"""The rules of the Idempotency-Key header, without any server."""

import base64
import gzip
import json
import math
import re
import zlib
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import web
from onceward.errors import (
    Busy,
    KeyMissing,
    LeaseLost,
    Mismatch,
    Parked,
    Reentrant,
    ResultNotRecorded,
    ResultUnavailable,
    StoreError,
)
from onceward.http.answer import Recorded, bodiless, recorded, replay
from onceward.http.body import fingerprint
from onceward.http.guarded import Exchange, Unrecorded
from onceward.http.request import BadRequest, read_key
from onceward.http.route import KeyedRequest, PendingRequest
from onceward.keys.ledger_keys import scoped_key
from onceward.results.codec import Codec
from onceward.web import Answer, Request, Route, Scope
from tables import each
from web.calls import Rules

UUID = "8e03978e-40d5-43e8-bc93-6894a57f9324"
JSON = ("content-type", "application/json")


def post(path="/orders", *headers, query="", method="POST", **more):
    return Request(method, path, query, headers, **more)


def keyed(key=UUID, *headers, path="/orders", **more):
    return post(path, ("idempotency-key", key), *headers, **more)


def asked(rules, request, body=b""):
    """Drive the rules to their end, as a shell does."""
    pending = rules.begin(request)
    return rules.ask(pending, body) if isinstance(pending, PendingRequest) else pending


def fields(answer):
    return {name.lower(): value for name, value in answer.headers}


def problem(answer):
    headers = fields(answer)
    assert headers["content-type"] == "application/problem+json"
    document = json.loads(answer.body)
    assert document["status"] == answer.status
    assert document["type"].endswith(f"#{kind_of(answer)}")
    return document


def kind_of(answer):
    return json.loads(answer.body)["type"].partition("#")[2]


@each(
    ("line", "key"),
    [
        (f'"{UUID}"', UUID),  # the draft's first example
        ('"clkyoesmbgybucifusbbtdsbohtyuuwz"', "clkyoesmbgybucifusbbtdsbohtyuuwz"),  # and its second
        ('  "a"  ', "a"),  # RFC 9651, 4.2: leading and trailing spaces are discarded
        (r'"a\"b\\c"', r'a"b\c'),
        ('"a, b; c"', "a, b; c"),
        ('"a";q=1', "a"),  # parameters are allowed, and those that are not known are ignored
        ('"a"; q;  w=?1;e="x;y";r=tok/en:a;t=:YQ==:;z=-1.5;u=@1659578233;i=%"%c3%bc"', "a"),
    ],
)
def test_a_string_in_quotes_is_a_key(line, key):
    assert read_key([line], strict=True) == read_key([line]) == key


@each(
    "line",
    [
        "",
        " ",
        '""',
        '"   "',
        '"a',
        'a"',
        '"a" "b"',
        '"a", "b"',  # what a proxy makes of two lines
        '"a"b',
        '"a" ;q=1',
        '"a";',
        '"a";Q=1',
        '"a";q=',
        '"a";q=1.2345',
        '"a";q=(1 2)',
        r'"a\b"',
        '"a\tb"',
        '"\x7f"',
        '"ü"',
        "ü",
        "a b",
        "a,b",
        "a;b",
        "a\\b",
        ":YQ==:;x",
        "\u0661",  # a digit of another script
        "a\n",
    ],
)
def test_everything_else_is_refused(line):
    for strict in (True, False):
        with pytest.raises(BadRequest):
            read_key([line], strict=strict)


@each("line", [UUID, "abc", "a:b/c+d=", "order#7", "  abc\t", "7", "?1", "!'()*[]"])
def test_a_bare_value_is_a_key_unless_strict(line):
    assert read_key([line]) == line.strip()
    with pytest.raises(BadRequest, match="quotes"):
        read_key([line], strict=True)


def test_a_header_is_one_and_its_length_is_bounded_on_both_sides():
    assert read_key(["a" * 255]) == "a" * 255
    for lines, options, says in (
        (['"a"', '"a"'], {}, "2 times"),
        (['"' + "a" * 256 + '"'], {}, "256 characters"),
        (["a" * 15], {"least": 16}, "16 to 255"),
    ):
        with pytest.raises(BadRequest, match=says):
            read_key(lines, **options)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1).filter(str.strip))
def test_any_printable_text_survives_quoting(key):
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert read_key([quoted], strict=True, most=10**6) == key


@given(st.one_of(st.text(), st.text(st.sampled_from('"\\;=, a1*:?%@.'))))
def test_no_header_breaks_the_reader(line):
    try:
        key = read_key([line])
    except BadRequest:
        return
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()
    if '"' not in line:
        assert key == line.strip(" \t")


@each(
    ("pattern", "path", "covered"),
    [
        ("*", "/", True),
        ("*", "", True),
        ("/orders", "/orders", True),
        ("/orders", "/orders/", True),
        ("/orders", "//orders", True),  # as frameworks route them
        ("/orders", "/orders//", True),
        ("/orders", "/orders\n", True),
        ("/v1/orders/{id}", "//v1//orders/7", True),
        ("/orders/{id:int}", "/orders/7", True),
        ("/orders/", "/orders", True),
        ("/orders", "/orders/7", False),
        ("/orders", "/ordersx", False),
        ("/orders", "/v1/orders", False),
        ("/orders/{id}", "/orders/7", True),
        ("/orders/{id}", "/orders/", False),
        ("/orders/{id}", "/orders/7/refunds", False),
        ("/orders/{id}/refunds", "/orders/7/refunds", True),
        ("/v1/*", "/v1/a/b", True),
        ("/v1/*", "/v1", False),
        ("/a.b", "/axb", False),
    ],
)
def test_a_route_covers_a_path_and_the_methods_that_are_not_idempotent(pattern, path, covered):
    assert Route(pattern).covers("POST", path) is Route(pattern).covers("PATCH", path) is covered
    assert not any(Route(pattern).covers(method, path) for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))


def test_the_first_route_that_covers_a_request_counts():
    rules = Rules(Route("/orders/drafts", required=False), Route("/orders/*"))
    assert rules.begin(post("/orders/drafts")) is rules.begin(keyed(path="/refunds")) is None
    assert rules.begin(post("/orders/7")).status == 400


def test_a_missing_key_is_400_where_it_is_required():
    answer = Rules(docs="https://developer.example.com/idempotency").begin(post())
    assert problem(answer) == {
        "type": "https://developer.example.com/idempotency#missing",
        "title": "Idempotency-Key is missing",
        "status": 400,
        "detail": "This operation needs an idempotency key in the header Idempotency-Key, the same one each time the "
        "request is sent again. Nothing was done.",
    }
    link = '<https://developer.example.com/idempotency>; rel="describedby"; type="text/html"'
    assert fields(answer)["link"] == link


def test_where_the_key_is_optional_a_missing_one_lets_through_and_a_bad_one_is_400():
    rules = Rules(Route(required=False))
    assert rules.begin(post()) is None
    assert isinstance(asked(rules, keyed()), KeyedRequest)
    for line in ('"a" "b"', "a b", ""):
        answer = rules.begin(keyed(line))
        assert (problem(answer)["title"], answer.status) == ("Idempotency-Key is malformed", 400)


def test_the_header_has_the_name_and_form_that_the_rules_say():
    rules = Rules(Route(key="X-Request-Token"))
    assert rules.begin(keyed()).status == 400
    assert isinstance(asked(rules, post("/orders", ("x-request-token", "t"))), KeyedRequest)
    assert asked(Rules(), keyed("abc"))[:3] == asked(Rules(), keyed('"abc"'))[:3]
    assert Rules(strict=True).begin(keyed(UUID)).status == 400
    assert isinstance(asked(Rules(strict=True), keyed(f'"{UUID}"')), KeyedRequest)


IN_BODY = Rules(Route(key="body.payment.id"))


def test_the_key_is_read_from_the_body():
    body = b'{"payment": {"id": "p-1", "amount": 5}}'
    one = asked(IN_BODY, post(), body)
    same = asked(IN_BODY, post(), b'{"payment": {"id": "p-1", "amount": 6}}')
    other = asked(IN_BODY, post(), b'{"payment": {"id": "p-2", "amount": 5}}')
    assert one.key == same.key != other.key
    assert one.fingerprint != same.fingerprint
    assert one.key == asked(IN_BODY, post(), b"\xef\xbb\xbf" + body).key  # a byte order mark
    assert one.key == asked(IN_BODY, post("//orders/"), body).key != asked(IN_BODY, post("/refunds"), body).key
    assert one.key == asked(IN_BODY, post("/orders", GZIP), gzip.compress(body)).key
    several = Rules(Route(key="[body.shop, body.order]", required=False))
    assert isinstance(asked(several, post(), b'{"shop": "a", "order": 7}'), KeyedRequest)
    assert asked(several, post(), b'{"shop": "a"}').status == 400


@each("body", [b"", b"{}", b'{"payment": {}}', b'{"payment": {"id": null}}', b"no json", b"[" * 10**5])
def test_a_body_without_the_key_is_refused_or_let_through(body):
    answer = asked(IN_BODY, post(), body)
    assert (answer.status, kind_of(answer)) == (400, "missing")
    assert "payment.id" in problem(answer)["detail"]
    assert asked(Rules(Route(key="body.payment.id", required=False)), post(), body) is None


@each(
    ("body", "why"),
    [
        ('{"payment": {"id": "p-1"}}'.encode("utf-16"), "UTF-16"),
        (b'{"payment": {"id": "p-1"}, "n": NaN}', "NaN at byte 32"),
        (b'{"payment": {"id": "p-1"}, "said": "\\ud83d"}', "half of a surrogate pair at byte 36"),
        (b'{"payment": {"id": "p-1"}, "payment": {"id": "p-2"}}', "'payment' is there twice at byte 27"),
    ],
)
def test_a_body_that_some_applications_take_for_json_is_400_also_where_no_key_is_required(body, why):
    answer = asked(Rules(Route(key="body.payment.id", required=False)), post(), body)
    assert (answer.status, kind_of(answer)) == (400, "malformed")
    assert why in problem(answer)["detail"]


@each("value", ['"\\ud83d"', '""', '" "', "1.5", "true", "{}", '{"a": 1}', "[]", "[1.5]", "[[1]]"])
def test_a_key_of_another_kind_is_400(value):
    for required in (True, False):
        rules = Rules(Route(key="body.payment.id", required=required))
        answer = asked(rules, post(), b'{"payment": {"id": %s}}' % value.encode())
        assert (answer.status, kind_of(answer)) == (400, "malformed"), value


@given(st.binary())
def test_no_body_breaks_the_reading_of_its_key(body):
    found = asked(IN_BODY, post("/orders", JSON), body)
    assert isinstance(found, KeyedRequest) or found.status == 400


CREDENTIAL = Rules(scope=Scope.CREDENTIAL)


def scope_of(request, scope=Scope.CREDENTIAL):
    return asked(Rules(scope=scope), request).key[-1]


def test_a_scope_that_was_not_chosen_is_refused_with_the_choices():
    with pytest.raises(TypeError, match=r"^scope= is missing: .*Scope\.CREDENTIAL.*django_user.*Scope\.EVERYBODY"):
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
    for names in ((), ("Api Key",), ("",)):
        with pytest.raises(ValueError, match="give the names of headers"):
            Scope.credential(*names)


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
        "AWS AKID:c2ln",
        "SharedKey me:c2ln",
        "Digest\tusername=x",
        "HMAC-SHA256 c2ln",
    ],
)
def test_credentials_that_are_new_each_time_are_refused(value):
    answer = CREDENTIAL.begin(keyed(UUID, ("authorization", value)))
    assert (answer.status, kind_of(answer)) == (400, "unscoped")
    assert isinstance(asked(Rules(scope=Scope.EVERYBODY), keyed(UUID, ("authorization", value))), KeyedRequest)


def token(**claims):
    return ".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (b"{}", json.dumps(claims).encode(), b"s")
    )


def test_a_token_that_expires_is_warned_of_once(caplog):
    rules = Rules(scope=Scope.credential("Authorization"))
    for opaque in ("Bearer abc", "Bearer a.b.c", f"Bearer {token(sub='ann')}", "Basic YTpi"):
        rules.begin(keyed(UUID, ("authorization", opaque)))
    assert caplog.text == ""
    for exp in (1, 2):
        assert isinstance(
            rules.begin(keyed(UUID, ("authorization", f"Bearer {token(sub='ann', exp=exp)}"))), PendingRequest
        )
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "renews its token" in caplog.text
    assert token(sub="ann", exp=1) not in caplog.text


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


def test_a_scope_may_be_a_callable():
    assert scope_of(keyed(native={"user": 7}), scope=lambda request: request.native["user"]) == 7
    for nothing in (None, ""):
        answer = Rules(scope=lambda request, nothing=nothing: nothing).begin(keyed())
        assert (answer.status, kind_of(answer)) == (400, "unscoped")


def test_everybodys_keys_are_told_in_so_many_words():
    first, second = (asked(Rules(), keyed(UUID, ("authorization", who))) for who in ("Basic a", "Basic b"))
    assert scoped_key("shop", first.key) == scoped_key("shop", second.key) == f"shop:{UUID}:*"


def printed(fingerprint, body=b"{}", path="/orders", **more):
    return asked(Rules(fingerprint=fingerprint), keyed(path=path, **more), body).fingerprint


def test_all_of_a_request_is_compared_unless_told_otherwise():
    assert printed("all") == fingerprint(keyed(), b"{}") != printed("all", b"[]")


def test_only_the_path_may_be_compared():
    assert printed("path") == printed("path", b"[]", query="a=1") != printed("path", path="/refunds")
    assert printed("path") != printed("path", method="PATCH")


@each("kind", [str, bytes, lambda value: [value], lambda value: {"amount": value}])
def test_what_is_compared_may_be_chosen(kind):
    def amount(request, body):
        return kind(str(json.loads(body)["amount"]).encode() if kind is bytes else json.loads(body)["amount"])

    one = printed(amount, b'{"amount": 5, "sent": 1}')
    assert one == printed(amount, b'{"amount": 5, "sent": 2}') != printed(amount, b'{"amount": 6, "sent": 1}')
    assert one != printed(amount, b'{"amount": 5, "sent": 1}', path="/refunds")


def test_exempt_paths_are_not_guarded():
    rules = Rules(Route("/v1/*"), exempt=["/v1/health", "/v1/hooks/*"])
    for path in ("/v1/health", "/v1/health/", "//v1/health", "/v1/hooks/stripe"):
        assert rules.begin(keyed(path=path)) is None
    assert isinstance(rules.begin(keyed(path="/v1/orders")), PendingRequest)
    assert isinstance(rules.begin(keyed(path="/v1/healthy")), PendingRequest)


def in_ledger(key, scope, body=b""):
    rules = Rules(Route(key="body.id") if body else Route(), scope=lambda _: scope)
    return scoped_key("shop", asked(rules, keyed(key), body).key)


def test_a_key_in_the_ledger_begins_with_the_clients_own():
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


def print_of(body=b"", *headers, **more):
    return fingerprint(post("/orders", *headers, **more), body)


def test_method_path_query_and_body_are_in_the_fingerprint():
    prints = [
        print_of(b"a"),
        print_of(b"b"),
        print_of(b"a", query="x=1"),
        print_of(b"a", method="PATCH"),
        fingerprint(post("/refunds"), b"a"),
        print_of(b""),
    ]
    assert len(set(prints)) == len(prints)
    assert print_of(b"a", ("user-agent", "x"), ("date", "1")) == fingerprint(post("//orders/"), b"a") == prints[0]


@each(
    ("one", "other"),
    [
        (b'{"a": 1, "b": [1, 2]}', b'{"b":[1,2],"a":1}'),
        (b'{"a": {"c": 1, "b": 2}}', b'{"a": {"b": 2, "c": 1}}'),
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
        (b"1.5", b'"1.5"'),
        (b"null", b"{}"),
        (b"null", b""),
        (b"true", b"1"),
        (b"0.1", b"0.1000000000000000055511151231257827"),  # one float, two amounts
        (b"9007199254740993", b"9007199254740992.0"),
        (b"18446744073709551617", b"18446744073709551616"),
        (b"1e400", b"1e401"),
        (b"1", b"-1"),
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


NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False).filter(lambda d: abs(d.adjusted()) < 10**6),
)
DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


def reversed_members(document):
    if isinstance(document, dict):
        return {name: reversed_members(document[name]) for name in reversed(list(document))}
    return [reversed_members(item) for item in document] if isinstance(document, list) else document


@given(DOCUMENTS)
def test_any_document_has_one_fingerprint_however_it_is_written(document):
    one = json.dumps(document).encode()
    other = json.dumps(reversed_members(document), ensure_ascii=False, indent=1)
    if other.isascii() or all(not 0xD800 <= ord(c) < 0xE000 for c in other):
        assert print_of(one, JSON) == print_of(other.encode(), JSON)


@given(NUMBERS, NUMBERS)
def test_numbers_have_one_fingerprint_just_when_they_are_equal(one, other):
    def text(number):
        return (str(number) if isinstance(number, Decimal) else json.dumps(number)).encode()

    equal = Decimal(str(one)) == Decimal(str(other))
    if equal and max(abs(one), abs(other)) >= 10**19:
        return  # a whole number and its short form, as in 1e19: told apart, which is a 422 and no second effect
    assert (print_of(text(one), JSON) == print_of(text(other), JSON)) is equal


@given(st.binary(), st.text(), st.text())
def test_no_body_path_or_query_breaks_the_fingerprint(body, path, query):
    assert len(print_of(body, JSON)) == len(fingerprint(Request("POST", path, query), body)) == 64


def test_a_body_over_the_limit_is_413_unread_if_its_length_is_told():
    rules = Rules(max_request=10)
    assert rules.begin(keyed(UUID, ("content-length", "11"))).status == 413
    assert asked(rules, keyed(), b"x" * 11).status == 413
    assert isinstance(asked(rules, keyed(UUID, ("content-length", "10")), b"x" * 10), KeyedRequest)
    assert kind_of(rules.too_large()) == "too-large"
    assert Rules(Route(required=False), max_request=10).begin(post("/orders", ("content-length", "11"))) is None


@each("length", ["", "ten", "-1", "²", "9" * 5000])
def test_no_content_length_breaks_the_rules(length):
    found = Rules().begin(keyed(UUID, ("content-length", length)))
    assert isinstance(found, PendingRequest) is (length[:1] != "9")


def test_outcomes_are_recorded_and_what_may_pass_is_not():
    assert all(map(Rules().records, [200, 201, 204, 302, 303, 400, 402, 404, 409, 422]))
    assert not any(map(Rules().records, [307, 308, 408, 425, 429, 500, 502, 503, 504, 599]))
    assert [Rules(record=[200]).records(status) for status in (200, 201)] == [True, False]
    assert Rules(record=lambda status: True).records(500)
    assert Rules(record=range(200, 300)).records(201)


def test_a_replay_has_status_headers_and_body_and_says_so():
    answer = Answer(201, [("Content-Type", "text/plain"), ("Location", "/orders/7")], b"made")
    assert replay(recorded(answer)) == Answer(201, [*answer.headers, ("Idempotent-Replayed", "true")], b"made")


def test_cookies_and_hop_by_hop_headers_are_not_replayed():
    headers = [
        ("Set-Cookie", "session=1"),
        ("Date", "Sat, 21 Nov 2026 08:00:00 GMT"),
        ("Content-Length", "4"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close, X-Hop"),
        ("X-Hop", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Trailer", "Expires"),
        ("Idempotent-Replayed", "true"),
        ("ETag", '"a"'),
        ("Vary", "Accept"),
        ("Vary", "Origin"),
    ]
    assert recorded(Answer(200, headers)).headers == (("ETag", '"a"'), ("Vary", "Accept"), ("Vary", "Origin"))


@each("body", [b"", b'{"a": "\xc3\xbc"}', b"\x00", b"\xff\x00\xfe", bytes(range(256))])
def test_an_answer_comes_back_from_the_ledger_as_it_was(body):
    codec = Codec(Recorded)
    kept = recorded(Answer(200, [("x", "\xe9")], body))
    back = codec.decode(codec.encode(kept))
    assert back == kept
    assert replay(back).body == body
    readable = json.loads(codec.encode(recorded(Answer(201, [("a", "b")], b'{"id": 7}'))))
    assert readable == {"status": 201, "headers": [["a", "b"]], "body": '{"id": 7}'}


def test_a_body_over_limit_is_recorded_without_it_and_duplicate_is_told():
    rules = Rules(max_response=3)
    kept = rules.keep(Answer(201, [("a", "b")], b"1234"), 10**6)
    assert kept == bodiless(201, [("a", "b")], "its body has more than 3 bytes")
    answer = rules.repeat(kept)
    assert (answer.status, kind_of(answer)) == (409, "unavailable")
    assert "status 201" in problem(answer)["detail"]


@each("body", [b"a" * 1000, b"\x01" * 200, b"\xff" * 800])
def test_what_the_ledger_does_not_take_is_recorded_without_its_body(body):
    most = 1000
    kept = Rules().keep(Answer(200, [], body), most)
    assert kept.missing is not None
    assert len(msgspec.json.encode(kept)) <= most
    assert Rules().keep(Answer(200, [], body), 10 * most) == recorded(Answer(200, [], body))


ROUTE = "POST /orders"


@each(
    ("error", "status", "kind"),
    [
        (Busy("k", 40.0), 409, "in-flight"),
        (LeaseLost("k", "record its result"), 409, "in-flight"),
        (Mismatch("k"), 422, "reused"),
        (Parked("k-secret", 3, "secret"), 409, "stopped"),
        (ResultUnavailable("secret", "secret"), 409, "unavailable"),
        (StoreError("secret", transient=True), 503, "unready"),
        (StoreError("no such table of secret"), 503, "unready"),
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
    answer = Rules().refusal(Busy("k", left))
    assert fields(answer)["retry-after"] == after
    assert int(after) >= min(5, math.ceil(left))


@pytest.fixture
def exchange():
    return Exchange(Rules(), KeyedRequest(("k",), "f", ROUTE), 10**6)


def test_an_exchange_answers_refuses_or_goes_on(exchange):
    answer = exchange.repeated(recorded(Answer(201, [], b"made")))
    assert (answer.status, answer.body, fields(answer)) == (201, b"made", {"idempotent-replayed": "true"})
    outcome = exchange.outcome(Answer(503))
    assert isinstance(outcome, Unrecorded)
    assert "503" in str(outcome)
    assert exchange.refused(LeaseLost("k", "record its result"), done=True).status == 409
    for error in (Reentrant("k"), KeyMissing("k"), ZeroDivisionError()):
        with pytest.raises(type(error)):
            exchange.refused(error)


def test_an_answer_that_could_not_be_recorded_reaches_its_client_and_log(exchange, caplog):
    assert exchange.refused(ResultNotRecorded("k", None, "the store is away"), done=True) is None
    assert "the store is away" in caplog.text


@each(
    ("make", "says"),
    [
        *[
            (lambda path=path: Route(path), "is never in the path that a route is compared with")
            for path in ("/orders/<int:id>", "/f/{rest:path}", "/caf%C3%A9", "/orders?all=1", "/orders#top")
        ],
        *[(lambda record=record: Rules(record=record), "give statuses") for record in ("2xx", ["200"], [])],
        (lambda: Route("orders"), "slash"),
        (lambda: Route("/a/*/b"), "end only"),
        (lambda: Route("/a/{id"), "braces"),
        (lambda: Route("/a/{b/c}"), "braces"),
        (lambda: Route(key="Idempotency Key"), "header"),
        (lambda: Route(key=""), "header"),
        (lambda: Route(key=""), "JMESPath"),
        (lambda: Route(key="body.a["), "JMESPath"),
        (lambda: Route(key="body.items[].id"), "projection"),
        (lambda: Route(methods="POST"), "list"),
        (lambda: Route(methods=[]), "list"),
        (lambda: Rules("/orders"), "Route"),
        (lambda: Rules(length=(0, 5)), "length"),
        (lambda: Rules(length=(6, 5)), "length"),
        (lambda: Rules(max_request=-1), "max_request"),
        (lambda: Rules(max_response=True), "max_response"),
        (lambda: Rules(scope=7), "scope"),
        (lambda: Rules(scope=""), "scope"),
        (lambda: Rules(exempt="/health"), "give paths"),
        (lambda: Rules(exempt=["health"]), "slash"),
        (lambda: Rules(exempt=7), "give paths"),
        (lambda: Rules(fingerprint="body"), '"all", "path", or a callable'),
        (lambda: Rules(fingerprint=None), "callable"),
        (lambda: Rules(scope="X-Tenant"), "scope='X-Tenant': .*header:NAME"),
        (lambda: Rules(docs="https://example.com/#a"), "fragment"),
        (lambda: Rules(docs="https://example.com/\r\nx: y"), "fragment"),
    ],
)
def test_bad_options_are_refused_when_they_are_given(make, says):
    with pytest.raises((ValueError, TypeError), match=says):
        make()


def test_a_key_in_a_body_has_the_length_that_the_rules_say():
    rules = Rules(Route(key="body.id"), length=(2, 8))
    for key in ("x" * 9, "x", ["x" * 8, "y"], 10**9):
        answer = asked(rules, post(), json.dumps({"id": key}).encode())
        assert kind_of(answer) == "malformed"
    assert asked(rules, post(), b'{"id":"12345678"}').key


GZIP = ("content-encoding", "gzip")
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


def test_a_body_that_is_huge_when_decoded_is_refused():
    bomb = gzip.compress(bytes(1 << 24) + b"x")
    assert kind_of(asked(Rules(), keyed(UUID, GZIP), bomb)) == "too-large"
    assert kind_of(asked(Rules(), keyed(UUID, GZIP), gzip.compress(bytes(1 << 23)) * 3)) == "too-large"

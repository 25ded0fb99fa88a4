"""The rules of the Idempotency-Key header, without any server, and how the claim of an answer ends."""

import gzip
import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import Client

from faults.injected import Faults, fail_before
from onceward import Made, Once, Parked, ResultNotRecorded, StoreError, current
from onceward.core.record import IN_PROGRESS, PARKED, RELEASED
from onceward.http.request import BadRequest, read_key
from onceward.http.route import KeyedRequest, PendingRequest
from onceward.stores.memory import MemoryStore
from onceward.web import Route, Scope, WsgiIdempotency
from tables import each
from web.asgi import statuses
from web.calls import Rules
from web.rules import GZIP, JSON, UUID, asked, fields, keyed, kind_of, post, problem


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


TORN = ["", " ", '""', '"   "', '"a', 'a"', '"a" "b"', '"a"b', r'"a\b"', '"ü"', "ü"]
JOINED = ['"a", "b"', "a b", "a,b", "a;b", "a\\b", "a\n"]  # the first is what a proxy makes of two lines


@each("line", [*TORN, *JOINED])
def test_everything_else_is_refused(line):
    for strict in (True, False):
        with pytest.raises(BadRequest):
            read_key([line], strict=strict)


@each("line", [UUID, "a:b/c+d=", "order#7", "  abc\t", "7", "!'()*[]"])
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
        ("/orders", "/orders", True),
        ("/orders", "/orders/", True),
        ("/orders", "/orders\n", True),
        ("/v1/orders/{id}", "//v1//orders/7", True),  # as frameworks route them
        ("/orders/{id:int}", "/orders/7", True),
        ("/orders/", "/orders", True),
        ("/orders", "/orders/7", False),
        ("/orders", "/ordersx", False),
        ("/orders/{id}", "/orders/", False),
        ("/orders/{id}", "/orders/7/refunds", False),
        ("/orders/{id}/refunds", "/orders/7/refunds", True),
        ("/v1/*", "/v1/a/b", True),
        ("/v1/*", "/v1", False),
        ("/a.b", "/axb", False),
    ],
)
def test_a_route_covers_a_path_and_the_methods_that_are_not_idempotent(pattern, path, covered):
    rules = Rules(Route(pattern))
    assert [rules.route(method, path) is not None for method in ("POST", "PATCH")] == [covered, covered]
    assert not any(rules.route(method, path) for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))


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
    renamed = Rules(Route(key="X-Request-Token"))
    assert renamed.begin(keyed()).status == 400
    assert isinstance(asked(renamed, post("/orders", ("x-request-token", "t"))), KeyedRequest)


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
    assert kind_of(asked(several, post("/orders", ("content-encoding", "br")), b"\x0b\x02")) == "malformed"
    assert asked(several, post("/orders", ("content-encoding", "identity")), b"no json") is None


@each("body", [b"", b"{}", b'{"payment": {"id": null}}', b"no json", b"[" * 10**5])
def test_a_body_without_the_key_is_refused_or_let_through(body):
    answer = asked(IN_BODY, post(), body)
    assert (answer.status, kind_of(answer)) == (400, "missing")
    assert "payment.id" in problem(answer)["detail"]
    assert asked(Rules(Route(key="body.payment.id", required=False)), post(), body) is None


@each(
    ("body", "why"),
    [
        ('{"payment": {"id": "p-1"}}'.encode("utf-16"), "not UTF-8"),
        (b'{"payment": {"id": "p-1"}, "n": NaN}', "(byte 32)"),
        (b'{"payment": {"id": "p-1"}, "said": "\\ud83d"}', "truncated"),
        (b'{"payment": {"id": "p-1"}, "payment": {"id": "p-2"}}', "'payment' is there twice"),
    ],
)
def test_a_body_that_some_applications_take_for_json_is_400_also_where_no_key_is_required(body, why):
    answer = asked(Rules(Route(key="body.payment.id", required=False)), post(), body)
    assert (answer.status, kind_of(answer)) == (400, "malformed")
    assert why in problem(answer)["detail"]


@each("value", ['"\\ud83d"', '" "', "1.5", "true", '{"a": 1}', "[]", "[[1]]"])
def test_a_key_of_another_kind_is_400(value):
    for required in (True, False):
        rules = Rules(Route(key="body.payment.id", required=required))
        answer = asked(rules, post(), b'{"payment": {"id": %s}}' % value.encode())
        assert (answer.status, kind_of(answer)) == (400, "malformed"), value


@given(st.binary())
def test_no_body_breaks_the_reading_of_its_key(body):
    found = asked(IN_BODY, post("/orders", JSON), body)
    assert isinstance(found, KeyedRequest) or found.status == 400


def test_a_body_over_the_limit_is_413_unread_if_its_length_is_told():
    rules = Rules(max_request=10)
    assert rules.begin(keyed(UUID, ("content-length", "11"))).status == 413
    assert asked(rules, keyed(), b"x" * 11).status == 413
    assert isinstance(asked(rules, keyed(UUID, ("content-length", "10")), b"x" * 10), KeyedRequest)
    assert kind_of(rules.too_large()) == "too-large"
    assert Rules(Route(required=False), max_request=10).begin(post("/orders", ("content-length", "11"))) is None
    for bomb in (gzip.compress(bytes(1 << 24) + b"x"), gzip.compress(bytes(1 << 23)) * 3):  # huge when decoded
        assert kind_of(asked(Rules(), keyed(UUID, GZIP), bomb)) == "too-large"


@each(
    ("make", "says"),
    [
        *[
            (lambda path=path: Route(path), "is never in the path that a route is compared with")
            for path in ("/orders/<int:id>", "/f/{rest:path}", "/orders?all=1")
        ],
        (lambda: Route("orders"), "slash"),
        (lambda: Route("/a/*/b"), "end only"),
        (lambda: Route(key="body.a["), "JMESPath"),
        (lambda: Route(key="body.items[].id"), "projection"),
        (lambda: Route(methods="POST"), "list"),
        (lambda: Route(methods=["GET", "head"]), "^methods=.*'head' is not a method to guard"),
        (lambda: Route(required="yes"), "^required='yes': give True or False"),
        (lambda: Rules(length=(6, 5)), "length"),
        (lambda: Rules(record=["200"]), "give statuses"),
        (lambda: Rules(max_response=None), "^max_response=None: give a whole number"),
        (lambda: Rules(max_request="1"), "^max_request='1': give a whole number"),
        (lambda: Rules(record_within=float("inf")), "give 0 s to 100 years"),
        (lambda: Rules(strict="no"), "^strict='no': give True or False"),
        (lambda: Rules(scope="X-Tenant"), "scope='X-Tenant': .*header:NAME"),
        (lambda: Rules(scope="cookie:"), "^scope='cookie:': say which caller"),
        (lambda: Rules(fingerprint="body"), '"all", "path", or a callable'),
    ],
)
def test_bad_options_are_refused_when_they_are_given(make, says):
    with pytest.raises((ValueError, TypeError), match=says):
        make()


def test_an_iterator_of_methods_or_statuses_counts_as_a_list():
    rules = Rules(Route(methods=map(str.upper, ["post"])), record=map(int, ["200"]))
    assert isinstance(rules.begin(keyed()), PendingRequest)
    assert [rules.records(status) for status in (200, 201)] == [True, False]


def test_a_key_in_a_body_has_the_length_that_the_rules_say():
    rules = Rules(Route(key="body.id"), length=(2, 8))
    for key in ("x" * 9, "x", ["x" * 8, "y"], 10**9):
        answer = asked(rules, post(), json.dumps({"id": key}).encode())
        assert kind_of(answer) == "malformed"
    assert asked(rules, post(), b'{"id":"12345678"}').key


WITHIN = [None, 5.0]


def asked_of(app, once, within, data=b"{}"):
    guarded = WsgiIdempotency(app, once, Rules(scope=Scope.EVERYBODY, record_within=within), name="n")
    return Client(guarded).post("/orders", data=data, headers={"Idempotency-Key": "k"})


@each("within", WITHIN)
def test_a_transaction_left_open_is_rolled_back_before_its_key_is_given_back(tmp_path, within):
    once = Once(f"sqlite:///{tmp_path}/{within}.db?timeout=0.2")
    connection = sqlite3.connect(tmp_path / f"{within}.db", isolation_level=None)
    connection.execute("CREATE TABLE effects (n)")

    def app(environ, start_response):
        current().transaction(connection).__enter__()
        connection.execute("INSERT INTO effects VALUES (1)")
        raise LookupError  # as a time limit does when its __exit__ begins

    with pytest.raises(LookupError) as raised:
        asked_of(app, once, within)
    assert not connection.in_transaction
    assert [record.status for record, _ in once.ledger.records()] == [RELEASED]
    assert not getattr(raised.value, "__notes__", ())
    once.close()


@each("within", WITHIN)
def test_an_endpoint_that_has_steps_has_begun_even_if_its_answer_is_a_refusal(within):
    once, charges = Once("memory:"), []

    def charge():
        charges.append(1)
        raise TimeoutError

    def app(environ, start_response):
        try:
            current().step("charge", charge, on_lapse=lambda key: Made("found"))
        except TimeoutError:
            start_response("429 Too Many Requests", [])
            return [b"later"]
        start_response("201 Created", [])
        return [b"charged"]

    assert asked_of(app, once, within).status_code == 429
    assert asked_of(app, once, within, b"[]").status_code == 422  # the first input is bound
    assert asked_of(app, once, within).data == b"charged"
    assert len(charges) == 1


@each("status", ["409 Conflict", "200 OK", "429 Too Many Requests", "500 Internal Server Error"])
@each("within", WITHIN)
def test_an_attempt_that_a_step_has_stopped_is_parked_whatever_is_answered(within, status):
    once = Once("memory:")

    def charge():
        raise TimeoutError

    def app(environ, start_response):
        claim = current()
        try:
            claim.step("charge", charge, on_lapse="park", not_made=(ZeroDivisionError,))
        except TimeoutError:
            claim.release()  # so that another attempt meets the step
            raise
        except Parked:
            start_response(status, [])
            return [b"sorry"]

    with pytest.raises(TimeoutError):
        asked_of(app, once, within)
    asked_of(app, once, within)
    assert statuses(once) == [PARKED]
    assert asked_of(app, once, within).status_code == 409


@each("within", WITHIN)
def test_a_completion_that_is_not_recorded_is_known_behind_the_frameworks_answer(within):
    left = []
    once = Once(Faults(MemoryStore(), lambda _: left.pop() if left else None))

    def app(environ, start_response):
        left.extend([fail_before(StoreError)] * 3)
        with pytest.raises(ResultNotRecorded):
            current().complete("done")
        start_response("500 Internal Server Error", [])
        return [b"oops"]

    asked_of(app, once, within)
    assert statuses(once) == [IN_PROGRESS]
    assert asked_of(app, once, within).status_code == 409

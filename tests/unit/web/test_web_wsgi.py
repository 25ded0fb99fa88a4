"""The middleware for WSGI, called as a server calls an application; what PEP 3333 asks of either side is checked."""

import io
import json
import sys
import tracemalloc
from wsgiref.validate import validator

import pytest

from faults.injected import Faults, fail_before, settling, when
from onceward import Once, current
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.errors import LeaseLost, OncewardError, ResultWarning
from onceward.stores.memory import MemoryStore
from onceward.web import Answer, Scope
from tables import each
from web.asgi import records, statuses
from web.calls import Rules, WsgiIdempotency
from web.wsgi import EVENTS, JSON, Exchange, Shop, ask, environ


def streaming(*parts, headers=JSON, log=None, status="200 OK"):

    def app(environ, start_response):
        start_response(status, list(headers))
        for part in parts:
            if log is not None:
                log.append(part)
            yield part

    return app


def test_a_repeated_request_gets_the_first_answer_and_pep_3333_is_kept(once):
    shop = Shop(headers=[*JSON, ("Set-Cookie", "a=b"), ("X-Order", "7")])

    def checked(environ, start_response):  # the validator allows no Content-Length of its own for read()
        return validator(shop)(environ, start_response)

    app = validator(WsgiIdempotency(checked, once))

    def called():
        heads = []
        given = environ(body=b'{"a": 1}')
        given["wsgi.input"] = io.BytesIO(b'{"a": 1}')
        response = app(given, lambda *head: heads.append(head) or (lambda data: None))
        body = b"".join(response)
        response.close()
        return heads, body

    first, second = called(), called()
    assert first == ([("201 Created", [*JSON, ("Set-Cookie", "a=b"), ("X-Order", "7")])], b'{"run":1}')
    replay = [*JSON, ("X-Order", "7"), ("Idempotent-Replayed", "true"), ("Content-Length", "9")]
    assert second == ([("201 Created", replay)], b'{"run":1}')
    assert shop.bodies == [b'{"a": 1}']
    assert statuses(once) == [COMPLETED]


@each(
    ("how", "status", "problem"),
    [
        ({"key": None}, 400, "missing"),
        ({"key": ""}, 400, "malformed"),
        ({"key": '"a","b"'}, 400, "malformed"),  # as servers join two lines
        ({"HTTP_HOST": ""}, 400, "unscoped"),
        ({"body": b"x" * 101}, 413, "too-large"),
        ({"body": b"x" * 101, "chunked": True}, 413, "too-large"),
        ({"body": b"x", "chunked": True, "wsgi.input_terminated": False}, 400, "unreadable"),
        ({"CONTENT_LENGTH": "-1"}, 400, "unreadable"),
    ],
)
def test_a_request_that_cannot_be_done_once_is_refused_beforehand(once, how, status, problem):
    shop = Shop()
    answer = ask(WsgiIdempotency(shop, once, Rules(max_request=100, scope="header:Host")), **how)
    assert (answer.status, answer.problem) == (status, problem)
    assert shop.runs == 0
    assert records(once) == []


def test_a_chunked_body_reaches_application_and_counts_for_fingerprint(once):
    shop = Shop()
    app = WsgiIdempotency(shop, once)
    assert ask(app, body=b"x" * 50, chunked=True).status == 201
    assert ask(app, body=b"x" * 50, chunked=True).replayed
    assert ask(app, body=b"x" * 51, chunked=True).problem == "reused"
    assert shop.bodies == [b"x" * 50]


def test_a_key_counts_for_the_caller_that_the_server_has_authenticated(once):
    app = WsgiIdempotency(Shop(), once, Rules(scope=Scope.HOST))
    assert ask(app, REMOTE_USER="ann").sent == b'{"run":1}'
    assert ask(app, REMOTE_USER="bob").sent == b'{"run":2}'
    assert ask(app, REMOTE_USER="ann").sent == b'{"run":1}'
    assert ask(app, HTTP_AUTHORIZATION="Bearer x").problem == "unscoped"
    assert ask(app, HTTP_REMOTE_USER="ann").problem == "unscoped"


class Closing:
    """A body that notes when it was closed."""

    def __init__(self, parts, log):
        self.parts, self.log = iter(parts), log

    def __iter__(self):
        return self.parts

    def close(self):
        self.log.append("closed")


@pytest.mark.parametrize("sent", [0, 2])
def test_an_exception_of_the_application_gives_the_key_back_and_goes_on(once, sent):
    log = []

    def parts():
        yield from [b"part"] * sent
        raise LookupError("its own")

    def app(environ, start_response):
        start_response("200 OK", [])
        return Closing(parts(), log)

    app = WsgiIdempotency(app, once)
    for attempt in (1, 2):
        with pytest.raises(LookupError, match="its own"):
            exchange = Exchange(app)
            try:
                exchange.finish()
            finally:
                exchange.close()
        assert [(record.status, record.attempts) for record in records(once)] == [(RELEASED, attempt)]
    assert records(once)[0].error == "LookupError: its own"
    assert log == ["closed"] * 2


def test_a_worker_that_is_stopped_in_the_middle_leaves_the_key_claimed(once):
    def app(environ, start_response):
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        ask(WsgiIdempotency(app, once))
    assert statuses(once) == [IN_PROGRESS]


def test_the_claim_is_at_hand_in_the_application_and_its_answer_only(once):
    keys = []

    def app(environ, start_response):
        start_response("200 OK", EVENTS)
        for _ in range(2):
            keys.append(current().record.key)
            yield b"part"

    exchange = Exchange(WsgiIdempotency(app, once))
    for _ in range(2):
        with pytest.raises(OncewardError, match="there is no claim here"):
            current()
        exchange.finish()
    assert keys == ["http:k:*"] * 2


def test_a_streamed_answer_is_sent_as_made_and_ends_when_it_is_recorded(once):
    log = []
    exchange = Exchange(WsgiIdempotency(streaming(b"a", b"b", b"c", b"d", log=log), once))
    assert log == [b"a", b"b"]  # the second tells that the first is not all
    assert [exchange.part(), exchange.part(), log] == [b"a", b"b", [b"a", b"b"]]
    assert [exchange.part(), log] == [b"c", [b"a", b"b", b"c"]]
    assert [exchange.part(), statuses(once)] == [b"d", [IN_PROGRESS]]
    assert [exchange.part(), statuses(once)] == [None, [COMPLETED]]


def test_the_part_that_completes_the_content_length_waits_for_the_record(once):
    exchange = Exchange(WsgiIdempotency(streaming(b"ab", b"cd", b"ef", headers=[("Content-Length", "6")]), once))
    assert [exchange.part(), exchange.part(), statuses(once)] == [b"ab", b"cd", [IN_PROGRESS]]
    assert [exchange.part(), statuses(once)] == [b"ef", [COMPLETED]]


def test_a_client_that_leaves_in_the_middle_does_not_lose_the_effect(once):
    log = []

    def app(environ, start_response):
        start_response("200 OK", [])

        def parts():
            yield from (b"a", b"b", b"c", b"d")
            log.append("effect")

        return Closing(parts(), log)

    app = WsgiIdempotency(app, once)
    exchange = Exchange(app)
    assert exchange.part() == b"a"
    exchange.close()
    assert log == ["effect", "closed"]
    assert statuses(once) == [COMPLETED]
    assert (ask(app).sent, log) == (b"abcd", ["effect", "closed"])


def test_events_without_end_end_with_their_client_and_do_not_run_again(once):
    log = []

    def app(environ, start_response):
        start_response("200 OK", EVENTS)
        log.append("effect")
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            log.append("ended")

    app = WsgiIdempotency(app, once)
    exchange = Exchange(app)
    exchange.part()
    exchange.close()
    assert log == ["effect", "ended"]
    assert (ask(app).problem, log) == ("unavailable", ["effect", "ended"])


def test_a_long_answer_is_sent_in_bounded_memory_and_recorded_bodiless(once):
    part = bytes(100_000)

    def app(environ, start_response):
        start_response("200 OK", [])
        for _ in range(500):
            yield bytes(part)

    app = WsgiIdempotency(app, once, Rules(max_response=150_000))
    exchange = Exchange(app)
    tracemalloc.start()
    size = sum(map(len, exchange._parts))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    exchange.close()
    assert size == 50_000_000
    assert peak < 2_000_000
    again = ask(app)
    assert (again.status, again.problem) == (409, "unavailable")
    assert "more than 150000 bytes" in json.loads(again.sent)["detail"]


def test_a_worker_that_has_lost_its_claim_does_not_give_or_end_its_answer(once):
    def app(environ, start_response):
        once.ledger.clear(current().record.key, live=True)
        start_response("201 Created", [])
        yield from [b"mine"] * len(environ["QUERY_STRING"])

    answer = ask(WsgiIdempotency(app, once), QUERY_STRING="1")
    assert (answer.status, answer.problem) == (409, "in-flight")
    exchange = Exchange(WsgiIdempotency(app, once), QUERY_STRING="12")
    assert [exchange.part(), exchange.part()] == [b"mine", b"mine"]
    with pytest.raises(LeaseLost):
        exchange.part()
    exchange.close()


def test_an_answer_that_cannot_be_recorded_reaches_its_client():
    store = Faults(MemoryStore(), when(settling, fail_before()))
    app = WsgiIdempotency(Shop(), Once(store), lease=0.5)
    assert (ask(app).status, ask(app).problem) == (201, "in-flight")


def test_a_request_whose_sender_left_before_its_end_is_not_carried_out(once):
    shop = Shop()
    given = environ(body=b"x" * 50, CONTENT_LENGTH="60")
    given["wsgi.input"].ends = True
    app = WsgiIdempotency(shop, once)
    heads = []
    app(given, lambda *head: heads.append(head))
    assert heads[0][0] == "400 Bad Request"
    assert shop.runs == 0


def test_what_an_application_writes_is_recorded(once):
    def app(environ, start_response):
        write = start_response("200 OK", [])
        write(b"one ")

        def parts():
            write(b"two ")
            yield b"three "
            write(b"four")

        return parts()

    app = WsgiIdempotency(app, once)
    assert [ask(app).sent for _ in range(2)] == [b"one two three four"] * 2


def test_an_application_may_begin_another_answer_before_the_first_has_parts(once):
    def app(environ, start_response):
        start_response("200 OK", [])
        try:
            raise LookupError("nothing there")
        except LookupError:
            start_response("404 Not Found", [], sys.exc_info())
        return [b"nothing"]

    app = WsgiIdempotency(app, once)
    assert [(answer.status, answer.sent) for answer in (ask(app), ask(app))] == [(404, b"nothing")] * 2


WRONG = [("X-Name", "\u0141ukasz"), ("X-Name", "a\r\nX-More: b"), ("X Name", "a"), ("X-Name", 7)]


@each("answer", [*(Answer(201, [header]) for header in WRONG), Answer("201"), Answer(100)])
def test_an_answer_that_no_server_can_send_completes_the_claim_without_it(answer):
    def app(environ, start_response):
        with pytest.warns(ResultWarning, match="cannot be sent|its status is"):
            current().complete(answer)
        start_response("201 Created", [])
        return [b"order 7"]

    app = WsgiIdempotency(app, Once("memory:"))
    assert ask(app).sent == b"order 7"
    assert (ask(app).status, ask(app).problem) == (409, "unavailable")

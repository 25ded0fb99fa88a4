"""The middleware for ASGI, driven by hand as a server drives an application: message by message, without a socket."""

import asyncio
import contextlib
import sqlite3

import pytest

from faults.injected import Faults, fail_before, settling, when
from onceward import Once, current
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.web import Answer, Route
from tables import each
from web import asgi
from web.calls import AsgiIdempotency, Rules


@each(
    "given",
    [
        {"type": "lifespan"},
        {"type": "websocket", "path": "/orders", "headers": asgi.KEY},
        asgi.scope(method="GET"),
        asgi.scope(path="/other"),
        asgi.scope(headers=[], path="/free"),
    ],
)
def test_what_carries_no_key_reaches_the_application_as_it_is(once, given):
    seen = []

    async def app(*arguments):
        seen.append(arguments)

    guarded = AsgiIdempotency(app, once, Rules(Route("/orders"), Route("/free", required=False)))
    asgi.run(guarded(given, "receive", "send"))
    assert len(seen) == 1
    assert seen[0][0] is given
    assert seen[0][1:] == ("receive", "send") or (given["type"] == "lifespan" and seen[0][1] == "receive")
    assert asgi.records(once) == []


def test_a_body_without_its_key_reaches_application_and_what_follows_it(once):
    async def app(scope, receive, send):
        seen.append(await asgi.read(receive))
        client.gone.set()
        seen.append((await receive())["type"])
        await asgi.answer(send)

    client, seen = asgi.Client(b'{"a"', b":1}"), []
    asgi.run(asgi.served(AsgiIdempotency(app, once, Rules(Route(key="body.id", required=False))), client))
    assert seen == [b'{"a":1}', "http.disconnect"]
    assert asgi.records(once) == []


async def test_the_second_request_gets_the_first_ones_answer(once):
    app = asgi.Counter()
    guarded = AsgiIdempotency(app, once)
    first = await asgi.ask(guarded, b'{"a": 1, "b": 2}', headers=asgi.KEY + asgi.JSON)
    second = await asgi.ask(guarded, b'{"b":', b"2,", b'"a":1}', headers=asgi.KEY + asgi.JSON)
    assert (first.status, first.body) == (second.status, second.body) == (201, b'{"run":1}')
    assert first.headers == {"content-type": "application/json"}
    assert second.headers == first.headers | {"idempotent-replayed": "true", "content-length": "9"}
    assert (await asgi.ask(guarded, b'{"a": 2}', headers=asgi.KEY + asgi.JSON)).problem == "reused"
    assert app.bodies == [b'{"a": 1, "b": 2}']
    assert asgi.records(once)[0].key == "http:k:*"


@pytest.mark.parametrize("status", [200, 204, 304])
def test_an_answer_is_replayed_byte_by_byte(once, status):
    async def app(scope, receive, send):
        await asgi.answer(send, status, body, [(b"X-A", b"\xe4\xff"), (b"x-a", b"2"), (b"Set-Cookie", b"s=1")])

    body = b"\x00\xff\xfe" if status == 200 else b""
    _, again = asgi.asked(AsgiIdempotency(app, once), times=2)
    assert (again.status, again.body) == (status, body)
    kept = [(b"x-a", b"\xe4\xff"), (b"x-a", b"2"), (b"idempotent-replayed", b"true")]
    assert again.sent[0]["headers"] == kept + ([(b"content-length", b"3")] if status == 200 else [])


async def test_the_claim_is_at_hand_in_the_application_and_not_after_it(once):
    async def app(scope, receive, send):
        seen.append(current().record.key)
        await asyncio.create_task(inner())
        await asgi.answer(send)

    async def inner():
        seen.append(await asyncio.to_thread(lambda: current().attempt))

    seen = []
    await asgi.served(AsgiIdempotency(app, once, name="shop"))
    with pytest.raises(Exception, match="there is no claim here"):
        current()
    assert seen == ["shop:k:*", 1]


def test_a_mounted_application_is_guarded_by_the_path_it_sees(once):
    mounted = {"path": "/a/orders", "root_path": "/a"}
    guarded = AsgiIdempotency(asgi.Counter(), once, Rules(Route("/orders")))
    elsewhere = {"path": "/b/orders", "root_path": "/b"}, {"path": "/ab/orders", "root_path": "/a"}  # not mounted there
    first, again, other, beside = asgi.asked(guarded, mounted, mounted, *elsewhere)
    assert (first.body, again.body, beside.body) == (b'{"run":1}', b'{"run":1}', b'{"run":2}')
    assert other.problem == "reused"


async def test_a_request_without_a_key_or_with_too_long_body_is_refused_unread(once):
    app = asgi.Counter()
    guarded = AsgiIdempotency(app, once, Rules(max_request=10))
    missing = await asgi.ask(guarded, b"x", headers=[])
    assert (missing.status, missing.problem, missing.received) == (400, "missing", 0)
    declared = await asgi.ask(guarded, b"x" * 11, headers=[*asgi.KEY, (b"content-length", b"11")])
    assert (declared.status, declared.problem, declared.received) == (413, "too-large", 0)
    endless = await asgi.ask(guarded, *[b"xxxx"] * 100)
    assert (endless.status, endless.problem, endless.received) == (413, "too-large", 3)
    assert (await asgi.ask(guarded, b"xxxxx", b"xxxxx")).status == 201
    assert app.runs == 1


async def test_client_that_leaves_before_its_request_is_complete_starts_nothing(once):
    app = asgi.Counter()
    guarded = AsgiIdempotency(app, once)
    client = asgi.Client(b"half", b"never")
    client.pending.pop()
    client.gone.set()
    await asgi.served(guarded, client)
    assert (await asgi.ask(guarded, b"whole")).status == 201
    assert app.bodies == [b"whole"]


def test_without_a_ledger_nothing_runs(caplog):
    once = Once(Faults(MemoryStore(), when(lambda ask: True, fail_before())))
    app = asgi.Counter()
    client = asgi.run(asgi.ask(AsgiIdempotency(app, once)))
    assert (client.status, client.problem, app.runs) == (503, "unready", 0)
    assert "POST *" in caplog.text


@each(
    ("chunks", "headers", "sent"),
    [
        (None, (), [(None, False, COMPLETED), (b'{"run":1}', False, COMPLETED)]),
        ([b"a"], (), [(None, False, IN_PROGRESS), (b"a", True, IN_PROGRESS), (None, False, COMPLETED)]),
        (
            [b"a", b"b", b""],
            [(b"Content-Length", b"2")],
            [
                (None, False, IN_PROGRESS),
                (b"a", True, IN_PROGRESS),
                *[(part, True, COMPLETED) for part in (b"b", b"")],
                (None, False, COMPLETED),
            ],
        ),
    ],
)
def test_nobody_has_a_whole_answer_before_it_is_recorded(chunks, headers, sent):
    once, seen = Once("memory:"), []

    def watch(message):
        seen.append((message.get("body"), message.get("more_body", False), *asgi.statuses(once)))

    app = asgi.Counter() if chunks is None else asgi.streaming(chunks, headers)
    asgi.run(asgi.ask(AsgiIdempotency(app, once), watch=watch))
    assert seen == sent


@pytest.mark.parametrize("body", [b"", b"abc"])
def test_an_answer_shorter_than_its_content_length_is_not_replayed_as_a_whole_one(once, body):
    async def app(scope, receive, send):
        await asgi.answer(send, 201, body, [(b"content-length", b"9")])

    assert asgi.asked(AsgiIdempotency(app, once), times=2)[1].problem == "unavailable"


def test_background_work_begins_when_the_answer_is_recorded_and_sent(once):
    async def app(scope, receive, send):
        await asgi.answer(send)
        seen.append((len(client.sent), asgi.statuses(once)))
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"  # as ASGI has it after an answer
        raise RuntimeError("in the background")

    seen, client = [], asgi.Client()
    with pytest.raises(RuntimeError, match="in the background"):
        asgi.run(asgi.served(AsgiIdempotency(app, once), client))
    assert seen == [(2, [COMPLETED])]
    assert asgi.statuses(once) == [COMPLETED]


def test_extensions_that_go_past_the_messages_are_not_offered(once):
    async def app(scope, receive, send):
        seen.append(set(scope["extensions"]))
        await send({"type": "http.response.debug", "info": {}})
        await asgi.answer(send)

    seen = []
    offered = ["http.response.debug", "http.response.pathsend", "http.response.trailers", "http.response.zerocopysend"]
    client = asgi.run(asgi.served(AsgiIdempotency(app, once), extensions={name: {} for name in offered}))
    assert seen == [{"http.response.debug"}]
    assert client.sent[0]["type"] == "http.response.debug"


def test_an_exception_amid_an_answer_gives_the_key_back_and_goes_on(once):
    async def before(number):
        if number:
            raise LookupError("of the application")

    client = asgi.Client()
    with pytest.raises(LookupError, match="of the application"):
        asgi.run(asgi.served(AsgiIdempotency(asgi.streaming([b"a", b"b"], before=before), once), client))
    assert [message.get("more_body") for message in client.sent] == [None, True]
    assert asgi.statuses(once) == [RELEASED]
    again = asgi.asked(AsgiIdempotency(asgi.Counter(), once), times=2)
    assert ["idempotent-replayed" in client.headers for client in again] == [False, True]


def test_no_answer_at_all_gives_the_key_back_and_half_of_one_completes_it(once):
    async def silent(scope, receive, send):
        pass

    async def half(scope, receive, send):
        await send({"type": "http.response.start", "status": 201, "headers": []})

    for app, sent, status in ((silent, 0, RELEASED), (half, 1, COMPLETED)):
        client = asgi.run(asgi.served(AsgiIdempotency(app, once)))
        assert (len(client.sent), asgi.statuses(once)) == (sent, [status])
    assert asgi.asked(AsgiIdempotency(half, once))[0].problem == "unavailable"


def test_an_answer_that_came_after_its_claim_was_lost_is_not_sent(once, caplog):
    async def app(scope, receive, send):
        once.ledger.clear(current().record.key, live=True)
        await asgi.answer(send)

    client = asgi.run(asgi.ask(AsgiIdempotency(app, once)))
    assert (client.status, client.problem) == (409, "in-flight")
    assert "LeaseLost" in caplog.text


def test_a_stream_whose_claim_was_lost_is_broken_off(once):
    async def before(number):
        if number:
            once.ledger.clear(current().record.key, live=True)

    client = asgi.Client()
    with pytest.raises(Exception, match="broken off"):
        asgi.run(asgi.served(AsgiIdempotency(asgi.streaming([b"a", b"b"], before=before), once), client))
    assert [message.get("more_body") for message in client.sent] == [None, True, True]  # and no end


def test_an_answer_that_cannot_be_recorded_is_sent_and_its_key_stays_held(caplog):
    store, is_away = MemoryStore(), True
    away = Once(Faults(store, when(lambda ask: is_away and settling(ask), fail_before())), lease=0.5)

    async def app(scope, receive, send):
        nonlocal is_away
        await asgi.answer(send)
        is_away = False
        raise RuntimeError("and the background fails, too")

    client = asgi.Client()
    with pytest.raises(RuntimeError):
        asgi.run(asgi.served(AsgiIdempotency(app, away), client))
    assert (client.status, client.body) == (201, b"{}")
    assert "ResultNotRecorded" in caplog.text
    assert asgi.statuses(Once(store)) == [IN_PROGRESS]


def test_an_answer_that_commits_with_its_effect_is_replayed(tmp_path):
    async def app(scope, receive, send):
        connection.execute("CREATE TABLE IF NOT EXISTS charges (amount INTEGER)")
        with current().transaction(connection) as transaction:
            connection.execute("INSERT INTO charges VALUES (5)")
            transaction.result = Answer(201, [("content-type", "application/json")], b'{"charged":5}')
        raise RuntimeError("the answer never comes")

    once = Once(f"sqlite:///{tmp_path}/ledger.db")
    guarded = AsgiIdempotency(app, once)
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        with pytest.raises(RuntimeError):
            asgi.asked(guarded)
        (again,) = asgi.asked(guarded)
        assert (again.status, again.body) == (201, b'{"charged":5}')
        assert connection.execute("SELECT count(*) FROM charges").fetchone() == (1,)
    once.close()


def test_a_claim_completed_with_what_is_no_answer_is_not_run_again(once):
    async def app(scope, receive, send):
        await current().complete_async({"charged": 5})
        await asgi.answer(send)

    first, again = asgi.asked(AsgiIdempotency(app, once), times=2)
    assert (first.status, again.problem) == (201, "unavailable")


def test_an_applications_headers_may_be_an_iterator(once):
    client = asgi.run(asgi.served(AsgiIdempotency(asgi.streaming([b"a"], iter(asgi.JSON)), once)))
    assert (client.body, [*client.sent[0]["headers"]]) == (b"a", asgi.JSON)


def test_an_answer_that_a_server_would_refuse_is_not_replayed(once):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nb: c")]})
        await send({"type": "http.response.body", "body": b"done"})

    assert asgi.asked(AsgiIdempotency(app, once), times=2)[1].problem == "unavailable"

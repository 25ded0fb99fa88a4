"""The middleware for ASGI, whose clients leave, whose requests are cancelled, and whose handlers exit."""

import asyncio
import gc

import anyio
import pytest

from onceward import Once
from onceward.claim import heartbeat
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from tables import each
from web import asgi
from web.calls import AsgiIdempotency


def test_a_handler_is_not_told_that_its_client_left_before_it_answered(once):
    async def app(scope, receive, send):
        await asgi.read(receive)
        told = asyncio.create_task(receive())
        client.gone.set()
        await asyncio.sleep(0.1)
        seen.append(told.done())
        await asgi.answer(send)
        seen.append((await told)["type"])

    client, seen = asgi.Client(), []
    asgi.run(asgi.served(AsgiIdempotency(app, once), client))
    assert seen == [False, "http.disconnect"]
    assert asgi.statuses(once) == [COMPLETED]


async def test_a_handler_whose_request_is_cancelled_goes_on_and_is_recorded(once):
    async def app(scope, receive, send):
        runs.append(1)
        begun.set()
        await asyncio.sleep(0.2)
        await asgi.answer(send)
        done.set()

    runs, begun, done = [], asyncio.Event(), asyncio.Event()
    guarded = AsgiIdempotency(app, once)
    client = await asgi.cancelled(guarded, begun)
    gc.collect()
    await done.wait()
    assert client.sent == []  # the server takes no more of it
    again = await asgi.ask(guarded)
    assert (again.status, again.headers["idempotent-replayed"]) == (201, "true")
    assert runs == [1]


async def test_a_handler_that_fails_after_its_request_was_cancelled_is_logged(once, caplog):
    async def app(scope, receive, send):
        begun.set()
        await asyncio.sleep(0.05)
        raise LookupError("nobody waits for me")

    begun = asyncio.Event()
    await asgi.cancelled(AsgiIdempotency(app, once), begun)
    while asgi.statuses(once) != [RELEASED] or not caplog.records:
        await asyncio.sleep(0.01)
    assert "http:k:*: raised after its client had left" in caplog.text
    assert "nobody waits for me" in caplog.text


async def test_a_request_cancelled_while_it_waits_for_another_runs_nothing(once):
    async def app(scope, receive, send):
        runs.append(1)
        begun.set()
        await release.wait()
        raise LookupError  # so that a waiting one would run

    runs, begun, release = [], asyncio.Event(), asyncio.Event()
    guarded = AsgiIdempotency(app, once, wait=asgi.PATIENCE)
    holder = asyncio.create_task(asgi.served(guarded))
    await begun.wait()
    waiting = asyncio.create_task(asgi.served(guarded))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()
    with pytest.raises(LookupError):
        await holder
    await asyncio.sleep(0.3)
    assert asgi.statuses(once) == [RELEASED]
    assert runs == [1]


def test_a_handler_that_its_server_stops_with_the_loop_leaves_key_claimed(once):
    async def app(scope, receive, send):
        begun.set()
        await asyncio.sleep(asgi.PATIENCE)

    begun = asyncio.Event()
    asgi.run(asgi.cancelled(AsgiIdempotency(app, once), begun))
    assert asgi.statuses(once) == [IN_PROGRESS]  # what it began may have taken effect
    assert all(claim() is None for claim in heartbeat.HEARTBEAT.claims.values())


def test_a_client_that_the_server_cannot_write_to_costs_nothing(once):
    def watch(message):
        raise ConnectionResetError

    guarded = AsgiIdempotency(asgi.streaming([b"a", b"b", b"c"]), once)
    assert asgi.asked(guarded, {"watch": watch}, {})[1].body == b"abc"


EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


async def events(scope, receive, send):
    """Stream for ever, as Starlette does: until it is told that the client has left."""
    await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
    await asgi.read(receive)
    told = asyncio.create_task(receive())
    while not told.done():
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await asyncio.sleep(0.01)
    assert told.result()["type"] == "http.disconnect"


async def test_server_sent_events_end_with_their_client_and_do_not_begin_again(once):
    guarded = AsgiIdempotency(events, once)

    def watch(message):
        if len(client.sent) == 3:
            client.gone.set()

    client = asgi.Client(watch=watch)
    await guarded(asgi.scope(), client.receive, client.send)
    assert len(client.sent) > 3
    again = await asgi.ask(guarded)
    assert (again.status, again.problem) == (409, "unavailable")
    assert b"not sent to its end" in again.body


def test_an_answer_is_recorded_though_its_frameworks_time_is_over():
    class SlowStore(MemoryStore):
        async def exchange_async(self, request):  # who awaits it can be cancelled meanwhile
            await asyncio.sleep(0.02)
            return self.exchange(request)

    once, counter = Once(SlowStore()), asgi.Counter()

    async def app(scope, receive, send):
        with anyio.move_on_after(0.01):
            await counter(scope, receive, send)

    answers = asgi.asked(AsgiIdempotency(app, once), times=2)
    assert [(answer.status, answer.body) for answer in answers] == [(201, b'{"run":1}')] * 2
    assert asgi.statuses(once) == [COMPLETED]
    once.close()


async def test_a_request_cancelled_while_a_part_of_its_answer_waits_goes_on(once):
    runs, waiting = [], asyncio.Event()

    async def app(scope, receive, send):
        runs.append(1)
        async with anyio.create_task_group() as group:  # a task of its own, as Starlette has it
            group.start_soon(asgi.streaming([b"a", b"b"]), scope, receive, send)

    class Stuck(asgi.Client):
        async def send(self, message):  # as the stream of a middleware whose other end is gone
            waiting.set()
            await asyncio.Event().wait()

    guarded = AsgiIdempotency(app, once)
    await asgi.cancelled(guarded, waiting, Stuck())
    while asgi.statuses(once) != [COMPLETED]:
        await asyncio.sleep(0.01)
    assert (await asgi.ask(guarded)).body == b"ab"
    assert runs == [1]


async def test_server_sent_events_of_a_cancelled_request_end_for_good(once):
    begun, guarded = asyncio.Event(), AsgiIdempotency(events, once)
    client = asgi.Client(watch=lambda _: begun.set() if len(client.sent) == 3 else None)
    await asgi.cancelled(guarded, begun, client)
    while asgi.statuses(once) != [COMPLETED]:
        await asyncio.sleep(0.01)
    assert (await asgi.ask(guarded)).problem == "unavailable"


async def test_a_request_that_is_cancelled_with_its_handler_before_that_begins_renews_its_claim_no_more(once):
    async def app(scope, receive, send):
        await asyncio.sleep(0)  # begun or not: nobody waits for the rest
        pytest.fail("it went on")

    request = asyncio.ensure_future(asgi.served(AsgiIdempotency(app, once)))
    await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(tasks) == 2
    for task in tasks:  # as asyncio.run() does at its end
        task.cancel()
    await asyncio.wait(tasks)
    assert request.cancelled()
    del request, task, tasks
    assert asgi.statuses(once) == [IN_PROGRESS]
    assert all(claim() is None for claim in heartbeat.HEARTBEAT.claims.values())


@each("waits", [0, 1])
async def test_an_exit_reaches_the_server_as_without_the_middleware(waits):
    once = Once("memory:")

    async def app(scope, receive, send):
        for _ in range(waits):
            await asyncio.sleep(0)
        raise SystemExit

    with pytest.raises(SystemExit):
        await asgi.served(AsgiIdempotency(app, once))
    await asyncio.sleep(0.01)  # and the loop goes on
    assert asgi.statuses(once) == [IN_PROGRESS]


async def test_events_that_begin_after_their_request_was_cancelled_come_to_end(once):
    begun = asyncio.Event()

    async def app(scope, receive, send):
        begun.set()
        await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        while True:
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
            await asyncio.sleep(0.001)

    await asgi.cancelled(AsgiIdempotency(app, once), begun)
    while asgi.statuses(once) != [COMPLETED]:  # before the loop is closed, which ends everything
        await asyncio.sleep(0.01)

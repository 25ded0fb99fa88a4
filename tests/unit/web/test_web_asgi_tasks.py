"""Handlers behind the middleware for ASGI: what they wait for, who cancels them, and how they exit."""

import asyncio
import gc

import anyio
import pytest

from onceward.claim import heartbeat
from onceward.core.record import COMPLETED, IN_PROGRESS
from web import asgi
from web.calls import AsgiIdempotency

pytestmark = pytest.mark.sampled(waits=1)


def keyed(key):
    return [(b"idempotency-key", b'"%d"' % key)]


def run(main):
    messages = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: messages.append(context["message"]))
        return await main

    try:
        return asyncio.run(watched())
    finally:
        gc.collect()
        assert messages == []


def test_handlers_that_begin_together_may_wait_for_one_and_the_same_thing(once):
    async def main():
        connected = asyncio.get_running_loop().create_future()

        async def app(scope, receive, send):
            await connected
            await asgi.answer(send)

        guarded = AsgiIdempotency(app, once)
        requests = [asyncio.ensure_future(asgi.served(guarded, headers=keyed(key))) for key in range(3)]
        await asyncio.sleep(0)
        connected.set_result(None)
        return [(await request).status for request in requests]

    assert run(main()) == [201] * 3


def test_a_scope_cancelled_as_its_handler_has_just_begun_ends_there(once):
    async def app(scope, receive, send):
        with anyio.CancelScope() as giving_up:
            asyncio.get_running_loop().call_soon(giving_up.cancel)
            await anyio.sleep_forever()
        await asgi.answer(send, body=b"gave up")

    async def main():
        return (await asgi.served(AsgiIdempotency(app, once))).body

    assert run(main()) == b"gave up"
    assert asgi.statuses(once) == [COMPLETED]


def test_a_request_that_is_cancelled_with_its_handler_before_that_begins_renews_its_claim_no_more(once):
    async def app(scope, receive, send):
        await asyncio.sleep(0)  # begun or not: nobody waits for the rest
        pytest.fail("it went on")

    async def main():
        request = asyncio.ensure_future(asgi.served(AsgiIdempotency(app, once)))
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(tasks) == 2
        for task in tasks:  # as asyncio.run() does at its end
            task.cancel()
        await asyncio.wait(tasks)
        assert request.cancelled()

    run(main())
    assert asgi.statuses(once) == [IN_PROGRESS]
    assert all(claim() is None for claim in heartbeat.HEARTBEAT._claims.values())


@pytest.mark.parametrize("waits", [0, 1])
def test_an_exit_reaches_the_server_as_without_the_middleware(once, waits):
    async def app(scope, receive, send):
        for _ in range(waits):
            await asyncio.sleep(0)
        raise SystemExit

    async def main():
        with pytest.raises(SystemExit):
            await asgi.served(AsgiIdempotency(app, once))
        await asyncio.sleep(0.01)  # and the loop goes on

    run(main())
    assert asgi.statuses(once) == [IN_PROGRESS]


def test_an_exit_that_no_server_waits_for_reaches_who_runs_the_loop(once):
    async def app(scope, receive, send):
        await asyncio.sleep(0.01)
        raise SystemExit

    async def main():
        request = asyncio.ensure_future(asgi.served(AsgiIdempotency(app, once)))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.sleep(10)

    with pytest.raises(SystemExit):
        run(main())
    assert asgi.statuses(once) == [IN_PROGRESS]

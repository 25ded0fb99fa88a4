"""A server's end of ASGI, driven by hand: requests, what is sent for them, and small applications."""

import asyncio
import json
from collections import deque

PATIENCE = 60.0
KEY = [(b"idempotency-key", b'"k"')]
JSON = [(b"content-type", b"application/json")]


def scope(headers=KEY, method="POST", path="/orders", query=b"", **more):
    made = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method}
    made |= {"path": path, "raw_path": path.encode(), "query_string": query, "headers": list(headers)}
    return made | {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)} | more


class Client:
    """The server's end of one request: what the application gets from it, and what it has got of the application."""

    def __init__(self, *chunks, watch=None):
        parts = chunks or (b"",)
        numbered, request = enumerate(parts, 1), {"type": "http.request"}
        self.pending = deque(request | {"body": part, "more_body": at < len(parts)} for at, part in numbered)
        self.sent = []
        self.received = 0
        self.gone = asyncio.Event()
        self._watch = watch

    async def receive(self):
        self.received += 1
        if self.pending:
            return self.pending.popleft()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if self._watch is not None:
            self._watch(message)
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self):
        kinds = [message["type"] for message in self.sent]
        assert kinds == ["http.response.start", *["http.response.body"] * (len(self.sent) - 1)]
        assert [message.get("more_body", False) for message in self.sent[1:]] == [True] * (len(self.sent) - 2) + [False]
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def problem(self):
        assert self.headers["content-type"] == "application/problem+json"
        assert int(self.headers["content-length"]) == len(self.body)
        return json.loads(self.body)["type"].partition("#")[2]


async def ask(app, *chunks, watch=None, **how):
    client = Client(*chunks, watch=watch)
    await asyncio.wait_for(app(scope(**how), client.receive, client.send), PATIENCE)
    return client


def run(main):
    return asyncio.run(asyncio.wait_for(main, PATIENCE))


def asked(app, *requests, times=1):
    async def main():
        return [await ask(app, **how) for how in (requests or ({},)) * times]

    return run(main())


async def served(app, client=None, **how):
    client = client or Client()
    await app(scope(**how), client.receive, client.send)
    return client


async def cancelled(app, begun, client=None):
    """Cancel a request when ``begun`` is set, and return its client."""
    client = client or Client()
    request = asyncio.create_task(served(app, client))
    await begun.wait()
    request.cancel()
    await asyncio.wait((request,))
    assert request.cancelled()
    return client


async def read(receive):
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        if not message["more_body"]:
            return body


async def answer(send, status=201, body=b"{}", headers=JSON):
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def streaming(chunks, headers=(), before=None):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, chunk in enumerate(chunks):
            if before is not None:
                await before(number)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    return app


class Counter:
    """An application that says how often it ran, and what it was sent."""

    def __init__(self, status=201):
        self.runs = 0
        self.bodies = []
        self._status = status

    async def __call__(self, scope, receive, send):
        self.runs += 1
        self.bodies.append(await read(receive))
        await answer(send, self._status, b'{"run":%d}' % self.runs)


def records(once):
    return [record for record, _ in once.ledger.records()]


def statuses(once):
    return [record.status for record in records(once)]

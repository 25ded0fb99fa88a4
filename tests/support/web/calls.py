"""Requests to ASGI applications without a server, and visitors of a dashboard without a browser; and guards with a scope and a name, for tests that are about other things."""

import asyncio
import base64
import re

import httpx

from onceward import aws, web


def Rules(*routes, scope=web.Scope.EVERYBODY, **options):
    return web.Rules(*routes, scope=scope, **options)


def AsgiIdempotency(app, once, rules=None, *, name="http", **options):
    return web.AsgiIdempotency(app, once, rules or Rules(), name=name, **options)


def WsgiIdempotency(app, once, rules=None, *, name="http", **options):
    return web.WsgiIdempotency(app, once, rules or Rules(), name=name, **options)


def on_api(once, rules=None, **options):
    return aws.on_api(once, rules or Rules(), **options)


def guards(face):
    """Return a face's function that makes guards, such as ``idempotent``, with a scope and a name of its own."""

    def made(once, rules=None, *, name="http", **options):
        return face(once, rules or Rules(), name=name, **options)

    return made


def call(app, *requests):
    """Send requests to an application, one after another, and return its answers."""

    async def main():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return [await client.request(**request) for request in requests]

    return asyncio.run(main())


def post(path, key=None, **more):
    headers = {} if key is None else {"Idempotency-Key": key}
    return {"method": "POST", "url": path, "headers": headers, **more}


class DashboardVisitor:
    """Sends requests to an ASGI application from the address ``peer``, and follows no redirect."""

    def __init__(self, app, *, host="127.0.0.1", peer="127.0.0.1", headers=()):
        self._app = app
        self._base = f"http://{host}"
        self._peer = peer
        self._headers = dict(headers)

    def get(self, path, **options):
        return self.send("GET", path, **options)

    def post(self, path, data, **options):
        return self.send("POST", path, data=data, **{"headers": {"Origin": self._base}, **options})

    def send(self, method, path, headers=(), **options):
        async def sent():
            transport = httpx.ASGITransport(self._app, client=(self._peer, 1234))
            async with httpx.AsyncClient(transport=transport, base_url=self._base) as client:
                return await client.request(method, path, headers={**self._headers, **dict(headers)}, **options)

        return asyncio.run(sent())

    def sign_in(self, token, name="Ada"):
        self._headers["Authorization"] = f"Basic {base64.b64encode(f'{name}:{token}'.encode()).decode()}"
        assert self.get("/").status_code == 200

    def form(self, path, **options):
        """Return the hidden fields of the last form of a page."""
        text = self.get(path, **options).text
        last = text.split('method="post" action="/act"')[1]
        return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', last.split("</form>")[0]))

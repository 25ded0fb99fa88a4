"""Requests to ASGI applications without a server; and guards with a scope and a name, for tests that are about other things."""

import asyncio

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

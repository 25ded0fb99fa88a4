"""Requests to ASGI applications without a server."""

import asyncio

import httpx


def call(app, *requests):
    """Send requests to an application, one after another, and return its answers."""

    async def main():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return [await client.request(**request) for request in requests]

    return asyncio.run(main())


def post(path, key=None, **more):
    headers = {} if key is None else {"Idempotency-Key": key}
    return {"method": "POST", "url": path, "headers": headers, **more}

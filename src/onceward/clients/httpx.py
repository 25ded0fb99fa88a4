"""Transports for httpx."""

import asyncio
import time

import httpx

from onceward.clients.rules import ClientCall, SendAgain


class HttpxTransport(httpx.BaseTransport):
    """Sends each request with a key: ``httpx.Client(transport=HttpxTransport())``.

    Args:
        transport: the transport that sends; by default ``httpx.HTTPTransport()``.
        rules: when a request is sent again.

    Raises:
        httpx.TransportError: the last try failed.
        LeaseLost: the handler has lost its claim.
        ValueError: the handler has sent such a request before, so the two need keys of their own.
    """

    def __init__(self, transport: httpx.BaseTransport | None = None, rules: SendAgain | None = None) -> None:
        self._transport = transport or httpx.HTTPTransport()
        self._rules = rules or SendAgain()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request until it is answered."""
        request, sending = _sending(self._rules, request)
        while True:
            try:
                response = self._transport.handle_request(request)
            except httpx.TransportError:
                pause = sending.pause()
                if pause is None:
                    raise
            else:
                pause = sending.pause(response.status_code, response.headers)
                if pause is None:
                    return response
                response.close()
            time.sleep(pause)
            sending.check()

    def close(self) -> None:
        """Close the transport that sends."""
        self._transport.close()


class AsyncHttpxTransport(httpx.AsyncBaseTransport):
    """Like :class:`HttpxTransport`, for ``httpx.AsyncClient``."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None, rules: SendAgain | None = None) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._rules = rules or SendAgain()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request until it is answered."""
        request, sending = _sending(self._rules, request)
        while True:
            try:
                response = await self._transport.handle_async_request(request)
            except httpx.TransportError:
                pause = sending.pause()
                if pause is None:
                    raise
            else:
                pause = sending.pause(response.status_code, response.headers)
                if pause is None:
                    return response
                await response.aclose()
            await asyncio.sleep(pause)
            sending.check()

    async def aclose(self) -> None:
        """Close the transport that sends."""
        await self._transport.aclose()


def _sending(rules: SendAgain, request: httpx.Request) -> tuple[httpx.Request, ClientCall]:
    # A body that is not in memory is a generator, which gives its parts once.
    whole = isinstance(request.stream, httpx.ByteStream)
    url = str(request.url.copy_with(query=None, fragment=None))
    stream, extensions = request.stream, request.extensions
    copy = httpx.Request(request.method, request.url, headers=request.headers, stream=stream, extensions=extensions)
    return copy, rules.sending(copy.method, url, copy.headers, whole=whole)

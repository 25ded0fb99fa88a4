"""A middleware for aiohttp's client."""

import asyncio

import aiohttp
from aiohttp.payload import BytesPayload

from onceward.clients.rules import SendAgain


class AiohttpIdempotency:
    """Sends each request with a key: ``aiohttp.ClientSession(middlewares=[AiohttpIdempotency()])``.

    Put it last, so that the middlewares before it see one request.

    Args:
        rules: when a request is sent again.
    """

    def __init__(self, rules: SendAgain | None = None) -> None:
        self._rules = rules or SendAgain()

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request until it is answered.

        Raises:
            aiohttp.ClientConnectionError, TimeoutError: the last try failed.
            LeaseLost: the handler has lost its claim.
            ValueError: the handler has sent such a request before, so the two need keys of their own.
        """
        url = str(request.url.with_query(None).with_fragment(None))
        # A payload of bytes can be written again; a stream gives its parts once.
        whole = not request.body or isinstance(request.body, bytes | BytesPayload)
        sending = self._rules.sending(request.method, url, request.headers, whole=whole)
        while True:
            try:
                response = await handler(request)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError):
                pause = sending.pause()
                if pause is None:
                    raise
            else:
                pause = sending.pause(response.status, response.headers)
                if pause is None:
                    return response
                response.release()
            await asyncio.sleep(pause)
            sending.check()

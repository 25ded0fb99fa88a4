"""A receiver as an endpoint of Starlette and FastAPI."""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from onceward.web.webhooks.receiver import WebhookReceiver

_LARGEST: Final = 25 * 1024 * 1024  # bytes: docs.github.com, "Webhook events and payloads", "Payload cap"


def endpoint(receiver: WebhookReceiver) -> Callable[[Request], Awaitable[Response]]:
    """Make an endpoint. A body of more than 25 MiB, the most that GitHub sends, gets 413 before anything is verified.

    In FastAPI: ``app.add_api_route("/stripe", endpoint(hook), methods=["GET", "POST"])``; GET is for handshakes.
    """

    async def receive(request: Request) -> Response:
        body = bytearray()
        try:
            async for part in request.stream():  # it may have been read before
                body += part
                if len(body) > _LARGEST:  # Starlette has no limit, and nobody has signed it yet
                    return Response("the body is too large", 413)
        except ClientDisconnect:
            return Response("the body is cut short", 400)
        answer = await receiver.answer_async(
            request.headers, bytes(body), method=request.method, query=dict(request.query_params)
        )
        lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        return Response(answer.body, answer.status, Headers(raw=lines))

    return receive

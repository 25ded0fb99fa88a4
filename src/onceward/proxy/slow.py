"""Clients that stop in the middle of a body."""

import asyncio

from onceward.web.asgi_messages import DISCONNECT, Message, Receive


class Patience:
    """A ``receive`` that takes a client which is silent in the middle of its body as gone."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._more = True

    async def __call__(self) -> Message:
        """Return the next message."""
        if not self._more:
            return await self._receive()
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            self._more = False
            return {"type": DISCONNECT}
        self._more = message["type"] != DISCONNECT and message.get("more_body", False)
        return message

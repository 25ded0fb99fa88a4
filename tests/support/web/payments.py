"""An ASGI application that has effects, and counts them."""

import asyncio
import json


class Payments:
    """An application that takes an amount: 400 for 0, 500 for less, else 201 and a new number."""

    def __init__(self):
        self.begun = 0

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return
        body = json.loads((await receive())["body"])
        self.begun += 1
        number = self.begun
        await asyncio.sleep(0.02)
        status = 201 if body["amount"] > 0 else 400 if body["amount"] == 0 else 500
        await answer(send, status, {"number": number})


async def answer(send, status, document):
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(document).encode()})

"""An ASGI application behind the proxy: over a Unix socket, under uvicorn's own protocol, on the loop of the test."""

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from onceward.proxy import Proxy
from web.asgi import PATIENCE
from web.calls import Rules

_OPEN = []


class ThroughProxy:
    """Guards an application as AsgiIdempotency does, so that the same tests can drive it."""

    def __init__(self, app, once, rules=None, *, name="http", **options):
        self._folder = Path(tempfile.mkdtemp(prefix="proxy-"))
        self._socket = self._folder / "app"
        self.proxy = Proxy(f"unix:{self._socket}", once, rules or Rules(), name=name, health=None, **options)
        self._config = Config(app, log_level="critical", server_header=False, date_header=False, ws="none")
        self._state = ServerState()
        self._server = None

    async def __call__(self, scope, receive, send):
        async def undated(message):
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name != b"date"]
                message = {**message, "headers": kept}
            await send(message)

        if self._server is None:
            if not self._config.loaded:
                self._config.load()
            self._server = asyncio.ensure_future(self._start())
        await self._server
        await self.proxy(scope, receive, undated)

    async def _start(self):
        _OPEN.append(self)
        self._folder.mkdir(exist_ok=True)
        loop = asyncio.get_running_loop()
        return await loop.create_unix_server(
            lambda: H11Protocol(config=self._config, server_state=self._state, app_state={}), self._socket
        )

    async def close(self):
        """Stop the server, and close all connections."""
        if self._server is not None:
            (await self._server).close()
            self._server = None
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def receive():
            return next(messages)

        async def send(message): ...

        await self.proxy({"type": "lifespan"}, receive, send)
        for connection in list(self._state.connections):
            connection.transport.abort()
        while self._state.connections:
            await asyncio.sleep(0.01)
        shutil.rmtree(self._folder, ignore_errors=True)


def run(main):
    """Run a test's coroutine, and close what it has opened."""

    async def closing():
        try:
            return await main
        finally:
            with contextlib.suppress(IndexError):
                while True:
                    await _OPEN.pop().close()

    return asyncio.run(asyncio.wait_for(closing(), PATIENCE))

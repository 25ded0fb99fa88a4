"""An upstream that does what a test says, byte by byte, and a client of the proxy. All on the loop of the test."""

import asyncio
import contextlib

from onceward.proxy import Proxy
from web.calls import Rules

OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"
CLOSE = object()  # instead of an answer: close the connection


class Scripted:
    """A server that answers with bytes, CLOSE or a coroutine function of reader and writer, the last one for ever; ``raw`` has the connection to itself."""

    def __init__(self, *answers, raw=None):
        self._raw = raw
        self._tasks = set()
        self.requests = []
        self.connections = 0
        self._answers = list(answers) or [OK]

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._proxies = []
        return self

    async def __aexit__(self, *error):
        self._server.close()
        for proxy in self._proxies:
            await stopped(proxy)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def proxy(self, once, rules=None, *, base="", **options):
        """Return a proxy in front of it."""
        made = Proxy(self.url + base, once, rules or Rules(), name="http", **options)
        self._proxies.append(made)
        return made

    async def _serve(self, reader, writer):
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        try:
            if self._raw is not None:
                await self._raw(reader, writer)
                return
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if answer is CLOSE:
                    return
                if callable(answer):
                    await answer(reader, writer)
                else:
                    writer.write(answer)
                    await writer.drain()
                if b"\nconnection: close" in (answer.lower() if isinstance(answer, bytes) else b""):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


class Seen:
    def __init__(self, head, body):
        line, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, self.version = line.split(" ")
        self.lines = [tuple(one.split(": ", 1)) for one in lines]
        self.headers = dict(self.lines)
        self.body = body


async def _read(reader):
    try:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    except asyncio.IncompleteReadError:
        return None
    seen = Seen(head, b"")
    if "transfer-encoding" in seen.headers:
        while size := int(await reader.readline(), 16):
            seen.body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
    elif "content-length" in seen.headers:
        seen.body = await reader.readexactly(int(seen.headers["content-length"]))
    return seen


async def stopped(proxy):
    """Tell a proxy that its server stops."""
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive():
        return next(messages)

    async def send(message): ...

    await proxy({"type": "lifespan"}, receive, send)

"""A server's process: uvicorn and one middleware. Run: python benchmarks/http_server.py NAME LEDGER PORT."""

import sys

import uvicorn

from http_peers import App, Message, Receive, Send, guarded


class Renewed:
    """An application behind a middleware with a new ledger in memory whenever GET /renew asks for that."""

    def __init__(self, name: str, ledger: str) -> None:
        self._which = name, ledger
        self._app: App = guarded(name, ledger)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Hand a request on."""
        if scope.get("path") == "/renew":
            self._app = guarded(*self._which)
        await self._app(scope, receive, send)


if __name__ == "__main__":
    name, ledger, port = sys.argv[1:]
    uvicorn.run(
        Renewed(name, ledger),
        port=int(port),
        loop="asyncio",  # these two are what `pip install uvicorn` brings
        http="h11",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=600,  # seconds: the other servers' turns are between two of its own
    )

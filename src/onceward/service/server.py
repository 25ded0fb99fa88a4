"""Runs the service under uvicorn: on an address or a Unix socket, with or without TLS."""

import asyncio
import os
import signal
import socket
import stat
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.applications import Starlette

from onceward.service.heads import TimedHeads

_BACKLOG: Final = 2048
_GRACE: Final = 30  # seconds for requests under way, when it is told to stop


class StoppingServer(uvicorn.Server):
    """Answers those who wait for a busy key as soon as it is told to stop."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, once the requests under way are answered."""
        self._stopping.set()
        await super().shutdown(sockets)


def serve(
    app: Starlette,
    listener: socket.socket,
    *,
    certificate: str | None = None,
    private_key: str | None = None,
    started: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT. ``started`` is called when it listens."""
    config = uvicorn.Config(
        app,
        http=TimedHeads,
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan="on",
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
        timeout_graceful_shutdown=_GRACE,
    )
    server = StoppingServer(config, app.state.stopping)

    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, stop
        )  # uvicorn raises what it heard again when it has stopped: this ends the process in order
    started()
    server.run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only if the socket names its protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listening_at(path: str) -> socket.socket:
    """Return a Unix socket that only this user can connect to. It takes the place of one that nobody listens on.

    Raises:
        OSError: somebody listens there, or another file is there.
    """
    if os.path.lexists(path):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} is there, and is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            else:
                raise FileExistsError(f"somebody listens on {path}")
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    return listener

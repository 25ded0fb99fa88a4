"""Serves an ASGI application for a command: listens, runs uvicorn until it is told to stop, and ends in time."""

import contextlib
import ipaddress
import os
import signal
import socket
import stat
from collections.abc import Callable
from typing import Annotated, Final

from typer import Option

from onceward.cli.ledgers import refuse, say

_BACKLOG: Final = 2048

HostOption = Annotated[str, Option(metavar="ADDRESS", help="The address to listen on.")]
PortOption = Annotated[int, Option(metavar="N", help="The port to listen on; 0 takes a free one.", min=0, max=65535)]
UnixOption = Annotated[
    str | None,
    Option(metavar="PATH", help="Listen on a Unix socket instead of an address."),
]
CertificateOption = Annotated[
    str | None,
    Option(metavar="FILE", help="Its certificate (PEM), for HTTPS."),
]
PrivateOption = Annotated[str | None, Option(metavar="FILE", help="The certificate's key (PEM).")]


def serve(
    app: object,
    *,
    host: str,
    port: int,
    unix: str | None = None,
    is_private: bool = False,
    certificate: str | None = None,
    private_key: str | None = None,
    stop_within: float = 30.0,
    dates: bool = True,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve an application until a signal says stop; then finish the requests under way. Options that cannot be end the command.

    Only this user can connect to a Unix socket that ``is_private``. With ``dates`` the server adds the Date of each answer; the proxy
    passes on the one of its upstream. ``stopping`` is called first when it stops.
    """
    try:
        import uvicorn

        from onceward.service.heads import TimedHeads
    except ImportError:
        refuse("this command needs uvicorn: pip install 'onceward[cli,proxy]'")
    if (certificate is None) != (private_key is None):
        refuse("--certificate and --private-key: give both")
    # What a proxy in front says about clients is the application's business: uvicorn would believe it.
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # its type is not loaded before it is needed
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        date_header=dates,
        access_log=False,
        http=TimedHeads,
        ws="none",
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
        timeout_graceful_shutdown=max(1, round(stop_within)),
    )
    try:
        config.load()
    except OSError as error:
        refuse(f"--certificate {certificate} --private-key {private_key}: {error.strerror or error}")

    class StoppableServer(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            stopping()
            await super().shutdown(sockets)

    server = StoppableServer(config)

    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, stop
        )  # uvicorn raises what it heard again when it has stopped; so the command ends in order
    listener = _on_socket(unix, is_private=is_private) if unix is not None else _on_port(host, port)
    identity = None if unix is None else _identity(unix)
    scheme, name = "http" if certificate is None else "https", f"[{host}]" if ":" in host else host
    where = f"unix:{unix}" if unix is not None else f"{scheme}://{name}:{listener.getsockname()[1]}/"
    say(f"serving at {where} (ctrl-C stops it)")
    with listener:
        server.run(sockets=[listener])
    if unix is not None:
        with contextlib.suppress(OSError):
            if _identity(unix) == identity:  # while this process stopped, another one may have begun to listen there
                os.unlink(unix)


def is_local(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_ino, status.st_ctime_ns  # the number of a deleted file is given out again


def _on_port(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        refuse(f"--host {host} --port {port}: {error.strerror or error}")
    # asyncio does so only for sockets that name their protocol. Without it, an answer's body waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _on_socket(path: str, *, is_private: bool) -> socket.socket:
    if not path:  # Linux would listen at a name that every user of the machine can connect to
        refuse("--unix: give the path of a socket")
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177) if is_private else None
    try:
        if os.path.lexists(path) and stat.S_ISSOCK(os.lstat(path).st_mode) and not _is_listened_to(path):
            os.unlink(path)  # a process that was killed has left it
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        refuse(f"--unix {path}: {error.strerror or error}")
    finally:
        if before is not None:
            os.umask(before)
    return listener


def _is_listened_to(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return not probe.connect_ex(path)

"""Serves an ASGI application for a command: listens, runs uvicorn until it is told to stop, and ends in time."""

import contextlib
import ipaddress
import os
import socket
import stat
from typing import Annotated

import typer
from typer import Option

from onceward.cli.ledgers import USAGE, refuse

HostOption = Annotated[str, Option(metavar="ADDRESS", help="The address to listen on.")]
PortOption = Annotated[int, Option(metavar="N", help="The port to listen on; 0 takes a free one.", min=0, max=65535)]
UnixOption = Annotated[
    str | None,
    Option("--unix", metavar="PATH", help="Listen on a Unix socket instead of an address.", show_default=False),
]
CertificateOption = Annotated[
    str | None,
    Option("--certificate", metavar="FILE", help="Its certificate (PEM), for HTTPS.", show_default=False),
]
PrivateOption = Annotated[
    str | None, Option("--private-key", metavar="FILE", help="The certificate's key (PEM).", show_default=False)
]
ConnectionsOption = Annotated[
    int | None,
    Option(min=1, metavar="N", help="Connections at a time; a further one gets 503.", show_default="no limit"),
]
StopOption = Annotated[
    float, Option("--stop-within", min=0, metavar="S", help="Seconds to finish requests when told to stop.")
]


def serve(
    app: object,
    *,
    host: str,
    port: int,
    unix: str | None = None,
    certificate: str | None = None,
    private_key: str | None = None,
    connections: int | None = None,
    stop_within: float = 30.0,
    dates: bool = False,
) -> None:
    """Serve an application until a signal says stop; then finish the requests under way. Options that cannot be end the command.

    With ``dates`` the server adds the Date of each answer. The proxy passes on the one of its upstream.
    """
    try:
        import uvicorn

        from onceward.service.heads import TimedHeads
    except ImportError:
        refuse("this command needs uvicorn: pip install 'onceward[cli,proxy]'", USAGE)
    if (certificate is None) != (private_key is None):
        refuse("--certificate and --private-key: give both", USAGE)
    for given in filter(None, (certificate, private_key)):
        if not os.access(given, os.R_OK):
            refuse(f"{given}: it cannot be read", USAGE)
    listener = _on_socket(unix) if unix is not None else _on_port(host, port)
    file = None if unix is None else SocketFile(unix)
    scheme = "http" if certificate is None else "https"
    name = f"[{host}]" if ":" in host else host
    where = f"unix:{unix}" if unix is not None else f"{scheme}://{name}:{listener.getsockname()[1]}/"
    try:
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
            limit_concurrency=connections,
            timeout_graceful_shutdown=max(1, round(stop_within)),
        )
        config.load()
    except OSError as error:  # also of a certificate
        refuse(f"--certificate {certificate}: {error.strerror or error}", USAGE)
    typer.echo(f"onceward: {where} (ctrl-C stops it)", err=True)
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
    if file is not None:
        file.remove()


class SocketFile:
    """The file of a Unix socket that this process listens on."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._made = _made(path)

    def remove(self) -> None:
        """Remove it. While this process stops, another one may have begun to listen there: then it is that one's."""
        with contextlib.suppress(OSError):
            if _made(self._path) == self._made:
                os.unlink(self._path)


def _made(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_ino, found.st_ctime_ns  # the number of a deleted file is given out again


def _on_port(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        refuse(f"--host {host} --port {port}: {error.strerror or error}", USAGE)
    # asyncio does so only for sockets that name their protocol. Without it, an answer's body waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _on_socket(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode) and not _is_listened_to(path):
            os.unlink(path)  # a process that was killed has left it
        listener.bind(path)
        listener.listen()
    except OSError as error:
        listener.close()
        refuse(f"--unix {path}: {error.strerror or error}", USAGE)
    return listener


def _is_listened_to(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        return not asking.connect_ex(path)


def is_local(host: str) -> bool:
    """Return whether only programs of this machine reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

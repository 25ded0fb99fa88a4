"""Serves an ASGI application for a command: listens, runs uvicorn until it is told to stop, and ends in time."""

import ipaddress
import signal
import socket
from collections.abc import Callable
from typing import Annotated, Final

from typer import Option

from onceward.cli.ledgers import refuse, say

_BACKLOG: Final = 2048

HostOption = Annotated[str, Option(metavar="ADDRESS", help="The address to listen on.")]
PortOption = Annotated[int, Option(metavar="N", help="The port to listen on; 0 takes a free one.", min=0, max=65535)]
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
    certificate: str | None = None,
    private_key: str | None = None,
    stop_within: float = 30.0,
    dates: bool = True,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve an application until a signal says stop; then finish the requests under way. Options that cannot be end the command.

    With ``dates`` the server adds the Date of each answer; the proxy
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
    listener = _on_port(host, port)
    scheme, name = "http" if certificate is None else "https", f"[{host}]" if ":" in host else host
    say(f"serving at {scheme}://{name}:{listener.getsockname()[1]}/ (ctrl-C stops it)")
    with listener:
        server.run(sockets=[listener])


def is_local(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _on_port(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        refuse(f"--host {host} --port {port}: {error.strerror or error}")
    # asyncio does so only for sockets that name their protocol. Without it, an answer's body waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener

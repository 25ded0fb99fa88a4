"""The commands that serve a ledger over HTTP, serve and dashboard, and token; and what serves an application for a command."""

import ipaddress
import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Final

import typer
from typer import Argument, Option

from onceward.cli.ledgers import DEFAULT_STORE, StoreOption, check_answers, ledger_at, looking_at, refuse, say, usage
from onceward.errors import ResultWarning

VARIABLE: Final = "ONCEWARD_DASHBOARD_TOKEN"  # has the token
_BACKLOG: Final = 2048

HostOption = Annotated[str, Option(metavar="ADDRESS", help="The address to listen on.")]
PortOption = Annotated[int, Option(metavar="N", help="The port to listen on; 0 takes a free one.", min=0, max=65535)]
CertificateOption = Annotated[
    str | None,
    Option(metavar="FILE", help="Its certificate (PEM), for HTTPS."),
]
PrivateOption = Annotated[str | None, Option(metavar="FILE", help="The certificate's key (PEM).")]


def serve(
    *,
    store: StoreOption = DEFAULT_STORE,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8767,
    tokens: str | None = None,
    certificate: CertificateOption = None,
    private_key: PrivateOption = None,
    log: Annotated[bool, Option("--log/--no-log")] = True,
) -> None:
    """Serve the ledger over HTTP, for programs in any language.

    A client claims a key, does the work, extends its claim meanwhile, and completes the key. Duplicates get the
    recorded result. Any number of instances share one ledger. GET /openapi.json describes all actions.

    It listens on this machine only. For other machines, give it --tokens, and TLS with --certificate and --private-key.
    [bold]onceward token[/bold] makes a token.

    SIGTERM or ctrl-C stops it: requests under way are answered first.

    Example: [bold]onceward serve --store postgresql://localhost/orders --tokens tokens.txt --host 0.0.0.0[/bold]

    Options:
        tokens (FILE): The file of tokens. Without it, everybody on this machine can do everything.
        log: Log a line for each action. It has no key and no token.
    """
    try:
        import uvicorn  # noqa: F401 - it comes with the same extra

        from onceward.service.app import service
    except ImportError:
        refuse("this command needs Starlette and uvicorn: pip install 'onceward[cli,service]'")
    if tokens is None and not is_local(host):
        refuse(f"--host {host}: others can reach it there, so it needs --tokens. `onceward token` makes a file of them")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO if log else logging.WARNING, format="%(asctime)s %(message)s"
    )
    warnings.simplefilter("ignore", ResultWarning)  # the client is told in its answer
    with ledger_at(store) as once:
        check_answers(once)
        try:
            app = service(once, tokens=tokens)
        except (OSError, ValueError) as error:
            refuse(f"--tokens: {error}")
        listen(
            app,
            host=host,
            port=port,
            certificate=certificate,
            private_key=private_key,
            stopping=app.state.stopping.set,
        )


def token(
    name: Annotated[str, Argument()],
    *,
    tokens: str,
    namespace: list[str],
    action: list[str] | None = None,
) -> None:
    """Make a token, print it once, and add its hash to the file.

    To revoke a token, delete its line. A running service reads the changed file by itself.

    Example: [bold]onceward token orders-worker --tokens tokens.txt --namespace orders[/bold]

    Options:
        name (NAME): Whose token it is: a name for the log.
        tokens (FILE): The file to add it to.
        namespace (NAME): A namespace of keys that it is for, or * for all.
        action (NAME): What the token allows: claim, extend, step, complete, release, park, look, or * for all. Repeat
            it for more. By default: all but look.
    """
    from onceward.service.tokens import ACTIONS, add, generate_token

    try:
        made_token, line = generate_token(name, namespace, action or [one for one in ACTIONS if one != "look"])
        add(tokens, line)
    except OSError as error:
        refuse(f"--tokens {tokens}: {error.strerror or error}")
    except ValueError as error:
        refuse(str(error))
    typer.echo(made_token)


def dashboard(
    store: StoreOption = DEFAULT_STORE,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8765,
    allow_actions: bool = False,
    token_file: str | None = None,
    identity_header: str | None = None,
    trusted_proxy: list[str] | None = None,
    allow_host: list[str] | None = None,
    hide_results: bool = False,
) -> None:
    """Show the ledger in the browser: what needs a person, and why.

    It is read-only and listens on this machine only. With --allow-actions visitors can clear, park, unpark, retry and send
    again. Each action says first what it will do, and is recorded in the ledger.

    Options:
        allow_actions: Let visitors change records. Needs a token, or --identity-header.
        token_file (FILE): The file with the token to sign in with. Without it: ONCEWARD_DASHBOARD_TOKEN.
        identity_header (NAME): The header in which your reverse proxy gives the visitor's name.
        trusted_proxy (ADDRESS): The address of that proxy. The header counts only in requests from this address.
        allow_host (NAME): A name under which browsers reach the dashboard. By default: this machine's.
        hide_results: Show no results and no messages.
    """
    token = _dashboard_token(token_file)
    with usage():
        # uvicorn comes with the same extra
        from onceward.dashboard import dashboard as made
    if not is_local(host) and token is None and identity_header is None:
        refuse(f"--host {host}: others can reach it there, so it needs a token ({VARIABLE}) or --identity-header")
    if wrong := [name for name in allow_host or () if not name or "/" in name]:
        refuse(f"--allow-host {wrong[0]}: give the name of a host, as in ledger.example.com")
    with looking_at(store):
        pass  # the ledger is there
    with ledger_at(store) as once:
        app = made(
            once,
            allow_actions=allow_actions,
            token=token,
            identity_header=identity_header,
            trusted_proxies=trusted_proxy or (),
            hosts=[*(allow_host or ()), host],
            hide_results=hide_results,
        )
        once.ledger.survey()  # so that the first page need not wait for a connection
        listen(app, host=host, port=port, stop_within=1.0)


def _dashboard_token(file: str | None) -> str | None:
    """Return the token. It is no argument: every user of the machine can read those."""
    if file is None:
        return os.environ.pop(VARIABLE, None) or None
    try:
        with open(file, encoding="utf-8") as lines:
            return lines.read().strip() or refuse(f"--token-file {file}: it is empty")
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"--token-file {file}: {error}")


def listen(
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

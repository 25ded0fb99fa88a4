"""``onceward serve``: a ledger for programs in any language, over HTTP. ``onceward token`` makes a token for a client."""

import logging
import sys
import warnings
from typing import Annotated

import typer
from typer import Argument, Option

from onceward.cli.ledgers import (
    DEFAULT_STORE,
    StoreOption,
    check_answers,
    ledger_at,
    refuse,
)
from onceward.cli.serving import CertificateOption, HostOption, PortOption, PrivateOption, is_local
from onceward.cli.serving import serve as run
from onceward.errors import ResultWarning


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
        run(
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

"""The command that serves the dashboard of a ledger."""

import os

from onceward.cli.ledgers import DEFAULT_STORE, StoreOption, ledger_at, looking_at, refuse, usage
from onceward.cli.serving import HostOption, PortOption, is_local, serve

VARIABLE = "ONCEWARD_DASHBOARD_TOKEN"  # has the token


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
    token = _token(token_file)
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
        serve(app, host=host, port=port, stop_within=1.0)


def _token(file: str | None) -> str | None:
    """Return the token. It is no argument: every user of the machine can read those."""
    if file is None:
        return os.environ.pop(VARIABLE, None) or None
    try:
        with open(file, encoding="utf-8") as lines:
            return lines.read().strip() or refuse(f"--token-file {file}: it is empty")
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"--token-file {file}: {error}")

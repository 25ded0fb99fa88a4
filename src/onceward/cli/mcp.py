"""The command that serves a ledger to the agents of its operators, over MCP."""

from typing import Final

from onceward.cli.ledgers import DEFAULT_STORE, StoreOption, looking_at, refuse
from onceward.once import Once

_ACTIONS: Final = ("unpark", "settle", "clear")


def mcp(store: StoreOption = DEFAULT_STORE, allow: list[str] | None = None, show_payloads: bool = False) -> None:
    """Serve the ledger to an agent over MCP: it lists, shows and counts records.

    It is read-only, and shows no results, errors or messages of handlers. With --allow the agent can also unpark,
    settle or clear a key. Such a call takes effect once. The ledger records it with its reason, like an action of the
    dashboard.

    An MCP client starts the command, and talks to it over standard input and output.

    Options:
        allow (ACTION): Let the agent do this with keys: unpark, settle or clear. Repeat it for several actions. By
            default: none.
        show_payloads: Show results, errors, steps, messages and inputs, too.
    """
    actions = dict.fromkeys(allow or ())
    if wrong := [action for action in actions if action not in _ACTIONS]:
        refuse(f"--allow {wrong[0]}: give one of {', '.join(_ACTIONS)}")
    try:
        from onceward.cli.mcp_tools import assembled
    except ImportError:
        refuse("this command needs the MCP SDK: pip install 'onceward[cli,mcp]'")
    with looking_at(store) as ledger:
        next(iter(ledger.records()), None)  # the ledger can be read
        assembled(Once(ledger.store), actions, payloads=show_payloads).run()

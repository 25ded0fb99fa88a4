"""The command line: ``onceward pipe``, ``demo``, and the commands for those who look after a ledger."""

import sys

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line with the arguments of this process."""
    try:
        from onceward.cli.app import run

        run()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write("onceward: the command line needs typer and rich: pip install 'onceward[cli]'\n")
        sys.exit(2)

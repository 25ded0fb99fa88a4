"""The command line: ``onceward pipe``, ``demo``, and the commands for those who look after a ledger."""


def main() -> None:
    """Run the command line with the arguments of this process."""
    from onceward.cli.app import run

    run()

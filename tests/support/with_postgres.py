"""Runs a command with a PostgreSQL server of its own: ``python with_postgres.py COMMAND...``. Its URL is LEDGER."""

import os
import signal
import subprocess
import sys

import pytest

from servers.postgres import Postgres


def main(command: list[str]) -> int:
    try:
        server = Postgres()
    except (pytest.skip.Exception, pytest.fail.Exception) as error:  # how the tests say what is missing
        print(error, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return subprocess.run(command, env=os.environ | {"LEDGER": server.url}).returncode
    except KeyboardInterrupt:
        return 130
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

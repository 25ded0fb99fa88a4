"""The command, on SQLite."""

import json
import subprocess
import sys

STORE = ("--store", "sqlite:///cli.db")


def onceward(*arguments: str) -> str:
    command = [sys.executable, "-m", "onceward", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


onceward("exec", "--key", "k", *STORE, "--", "true")
onceward("exec", "--key", "k", *STORE, "--", "false")  # a replay: it does not run
(line,) = onceward("ls", *STORE, "--json").splitlines()
assert json.loads(line)["status"] == "COMPLETED"
assert "COMPLETED" in onceward("show", json.loads(line)["key"], *STORE)
assert json.loads(onceward("stats", *STORE, "--json"))["total"] == 1

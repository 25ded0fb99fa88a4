"""``onceward`` as a process, for tests of what it prints and does."""

import json
import os
import subprocess
import sys
import time

from onceward import Once
from places import SOURCES


class Cli:
    """Runs ``python -m onceward`` in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {**os.environ, "PYTHONPATH": f"{SOURCES}:{os.environ.get('PYTHONPATH', '')}", "COLUMNS": "200"}
        self.env.pop("ONCEWARD_STORE", None)

    def start(self, *arguments, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [sys.executable, "-m", "onceward", *map(str, arguments)]
        return subprocess.Popen(command, cwd=self.folder, env=self.env, **options)

    def run(self, *arguments, input=None, timeout=60, **options):
        if input is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*arguments, **options)
        out, err = process.communicate(input, timeout=timeout)
        result = subprocess.CompletedProcess(process.args, process.returncode, out, (err or b"").decode())
        assert "Traceback" not in result.stderr
        return result

    def write(self, name, *lines):
        path = self.folder / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return name

    def script(self, name, body):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return f"./{name}"

    def log(self, name="log"):
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    def once(self, **options):
        return Once(f"sqlite:///{self.folder}/onceward.db", **options)


def until(condition, seconds=20.0):
    """Wait for ``condition()`` and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")

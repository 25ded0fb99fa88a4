"""``onceward`` as a process, for tests of what it prints and does."""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle

from onceward import Once
from places import SOURCES, WORKERS

_AT_RUN_TIME = ("AWS_", "ONCEWARD_", "COLUMNS", "PYTEST_CURRENT_TEST")  # variables that no import reads
_PIPE = 65536  # bytes that a pipe takes at once


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
        """Run a command to its end: in a fork of a process that has imported onceward, or in a new interpreter if need be."""
        forking = warm()
        if not options and len(input or b"") <= _PIPE and forking.fits(self.env):
            result = forking.run(list(map(str, arguments)), self.folder, self.env, input, timeout)
        else:
            if input is not None:
                options["stdin"] = subprocess.PIPE
            process = self.start(*arguments, **options)
            out, err = process.communicate(input, timeout=timeout)
            result = subprocess.CompletedProcess(process.args, process.returncode, out, (err or b"").decode())
        assert "Traceback" not in result.stderr, result.stderr
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

    def lines(self, name="log"):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def log(self, name="log"):
        return " ".join(self.lines(name)).split()

    def once(self, **options):
        return Once(f"sqlite:///{self.folder}/onceward.db", **options)


class _Warm:
    """The process that forks for each command; see workers/warm_command.py."""

    def __init__(self, what="onceward"):
        self._environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{os.environ.get('PYTHONPATH', '')}"}
        self._channel, its = Pipe()
        with its:
            command = [sys.executable, WORKERS / "warm_command.py", what, str(its.fileno())]
            options = {"pass_fds": [its.fileno()], "stdin": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, env=self._environment, **options)
        atexit.register(self._close)

    def fits(self, environment):
        """Return whether only such variables differ as a command reads when it runs."""
        names = environment.keys() | self._environment.keys()
        changed = [name for name in names if environment.get(name) != self._environment.get(name)]
        return all(name.startswith(_AT_RUN_TIME) and "LAMBDA" not in name for name in changed)

    def run(self, arguments, folder, environment, given, timeout):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            if given is None:
                standard = os.open(os.devnull, os.O_RDONLY)
            else:
                standard, writes = os.pipe()
                os.write(writes, given)
                os.close(writes)
            self._channel.send((arguments, str(folder), environment))
            for fd in (standard, out.fileno(), err.fileno()):
                send_handle(self._channel, fd, self._process.pid)
            os.close(standard)
            child = self._channel.recv()
            is_in_time = self._channel.poll(timeout)
            if not is_in_time:
                os.kill(child, signal.SIGKILL)
            status = self._channel.recv()
            if not is_in_time:
                raise subprocess.TimeoutExpired(arguments, timeout)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(arguments, status, out.read(), err.read().decode())

    def _close(self):
        self._channel.close()
        self._process.wait()


warm = cache(_Warm)

"""What the servers of tests have in common: a process on a free port, killed, paused and stopped by its test."""

import http.client
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import waiting
from faults import processes
from servers.needs import free_port, listens
from servers.orphans import watched


class Server(ABC):
    """A running server; what it has on disk survives :meth:`kill`."""

    ending = signal.SIGKILL  # ends it when the run dies
    owner: str | None = None  # the host's user that runs it, when the tests are root's
    _environment: dict[str, str] | None = None
    _tries = 3  # waits for its port, each long enough for a server that starts at once

    def __init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix=f"onceward-{type(self).__name__.lower()}-"))
        self._user = owned_by(self.owner, self._scratch) if self.owner else {}
        self.port = free_port()

    @classmethod
    def at(cls, port: int, scratch: str = "") -> Self:
        """Return the server that another process has started."""
        made = cls.__new__(cls)
        made.port, made._scratch = port, Path(scratch)
        return made

    @property
    def where(self) -> dict[str, object]:
        """What :meth:`at` needs to know."""
        return {"port": self.port, "scratch": str(self._scratch)}

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return (self._scratch / "log").read_text(errors="replace")[-4000:]

    def start(self) -> None:
        """Start it, or after ``kill`` start it again on the same port, with what it has on disk."""
        self._process = watched(self._begin(), self.ending, self._scratch)
        said = lambda: f"{type(self).__name__} did not start: {self.log}"
        assert any(listens(self.port, self._process) for _ in range(self._tries)), said()
        waiting.until(self.answers, 60, said)

    @abstractmethod
    def _command(self) -> Sequence[object]:
        """Return what starts it."""

    def _begin(self) -> subprocess.Popen:
        return self._popen(self._command(), start_new_session=True)  # a Ctrl-C is for the tests, which stop it

    def _popen(self, command: Sequence[object], **more: object) -> subprocess.Popen:
        with (self._scratch / "log").open("ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            place = {"cwd": self._scratch, "env": self._environment, **self._user}
            return subprocess.Popen(list(map(str, command)), **streams, **place, **more)

    def answers(self) -> bool:
        """Return whether it does what it is for, once it takes connections."""
        return True

    def until(self, holds: Callable[[], object]) -> None:
        waiting.until(holds, 60, lambda: self.log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def crash(self) -> None:
        """Kill it and all its processes with SIGKILL."""
        self.kill()

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let it hang, until :meth:`go_on`."""
        processes.freeze(self._process.pid)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it, and forget what it holds."""
        if self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)


def asked(
    port: int, method: str, path: str, content: bytes | str = b"", headers: Mapping[str, str] | None = None
) -> tuple[bytes, Mapping[str, str]]:
    """Send one request past everything of ours; return the answer, which must not be an error, and its headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, content, dict(headers or {}))
    reply = connection.getresponse()
    answer = reply.read()
    connection.close()
    assert reply.status < 300, answer
    return answer, reply.headers


def owned_by(name: str, folder: Path) -> dict[str, object]:
    """Return the options with which a program runs as this user of the host, or as nobody; none unless the tests are root's."""
    if os.geteuid() != 0:
        return {}
    try:
        owner = pwd.getpwnam(name)
    except KeyError:
        owner = pwd.getpwnam("nobody")
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}

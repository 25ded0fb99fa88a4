"""What the servers of brokers for tests have in common: a process on a free port, killed, paused and stopped by its test."""

import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from faults import processes
from servers.needs import free_port, listens
from servers.orphans import watched


class BrokerServer(ABC):
    """A running server; what it has on disk survives :meth:`kill`.

    Attributes:
        ending: the signal that ends it when the run dies.
    """

    ending = signal.SIGKILL
    _tries = 1  # waits for its port, each long enough for a server that starts at once

    def __init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix=f"onceward-{type(self).__name__.lower()}-"))
        self.port = free_port()

    @classmethod
    def at(cls, port: int, scratch: str) -> Self:
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
        """The last it said."""
        return (self._scratch / "log").read_text(errors="replace")[-4000:]

    def start(self) -> None:
        """Start it, or after ``kill`` start it again on the same port, with what it has on disk."""
        self._process = watched(self._begin(), scratch=self._scratch)
        assert any(listens(self.port, self._process) for _ in range(self._tries)), (
            f"{type(self).__name__} did not start: {self.log}"
        )

    @abstractmethod
    def _begin(self) -> subprocess.Popen:
        """Return its process, just started."""

    def _popen(self, command: list[object], **more: object) -> subprocess.Popen:
        with (self._scratch / "log").open("ab") as log:
            return subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._scratch, **more
            )

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait(60)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let it hang, until :meth:`go_on`."""
        processes.freeze(self._process.pid)

    def go_on(self) -> None:
        """Let it run again."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it, and forget what it holds."""
        if self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

"""What the SQL servers for tests have in common: each runs in a temporary folder, as a user that is not root."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from servers.needs import free_port, listens
from servers.orphans import watched


class SqlServer(ABC):
    """A server on a free port.

    Attributes:
        name: of it.
        ending: the signal that ends it when the run dies.
    """

    name: str
    ending = signal.SIGKILL

    def __init__(self, owner: str) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix=f"onceward-{self.name.lower()}-"))
        self._user = owned_by(owner, self._scratch)
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

    def _started(self, command: Sequence[object], environment: Mapping[str, str]) -> None:
        """Start it, and wait until it takes connections."""
        with (self._scratch / "log").open("ab") as log:
            process = subprocess.Popen(
                list(map(str, command)),
                stdout=log,
                stderr=log,
                cwd=self._scratch,
                env=environment,
                start_new_session=True,
                **self._user,
            )
        self._process = watched(process, self.ending, self._scratch)
        assert listens(self.port, self._process), f"{self.name} did not start: {self.log}"
        for _ in range(500):
            if self.answers():
                return
            time.sleep(0.02)
        raise AssertionError(f"{self.name} takes no connections: {self.log}")

    @abstractmethod
    def answers(self) -> bool:
        """Return whether it takes connections. It is starting up."""

    @property
    def log(self) -> str:
        """The last it said."""
        return (self._scratch / "log").read_text(errors="replace")[-4000:]

    @abstractmethod
    def crash(self) -> None:
        """Kill it with SIGKILL."""

    def stop(self) -> None:
        """Stop it and forget what it holds."""
        if self._process.poll() is None:
            self.crash()
        shutil.rmtree(self._scratch, ignore_errors=True)


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

"""A bank that knows keys, in a folder. It kills the process that has just charged an order, once for each file ``crash-ORDER``."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path

from onceward import current


class Bank:
    """A bank of a guarded function. ``executor`` is a process above it that dies too, by its name, such as "java"."""

    def __init__(self, folder: Path, executor: str = "") -> None:
        self._folder = folder
        self._executor = executor

    def crash(self, orders: Iterable[str]) -> None:
        """Let the next charge of each order be the last thing that its process does."""
        for order in orders:
            (self._folder / f"crash-{order}").touch()

    def charge(self, order: str, cents: int = 5, idempotency_key: str | None = None) -> str:
        """Charge an order; by default with the key of the claim."""
        with (self._folder / "asked").open("a") as log:
            log.write(f"{order}\n")
        (self._folder / f"paid-{order}-{idempotency_key or current().key()}").touch()
        try:
            (self._folder / f"crash-{order}").unlink()
        except FileNotFoundError:
            return f"charged {order}"
        for process in self._dying():
            os.kill(process, signal.SIGKILL)
        raise AssertionError("nobody survives this")

    def asked(self) -> list[str]:
        """Return the orders for which it was asked, each time."""
        return (self._folder / "asked").read_text().split()

    def paid(self) -> list[str]:
        """Return the orders that are paid, each as often as it is paid."""
        assert not list(self._folder.glob("crash-*"))
        return sorted(path.name.split("-")[1] for path in self._folder.glob("paid-*"))

    def _dying(self) -> list[int]:
        line = [os.getpid()]
        while self._executor and (pid := _parent(line[-1])) > 1:
            line.append(pid)
            if Path(f"/proc/{pid}/comm").read_text().strip() == self._executor:
                return line[::-1]
        return line[:1]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

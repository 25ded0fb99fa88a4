"""Runs commands under the watchdog, which kills them when this process is killed."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from onceward.pipe import watchdog

_LOOK: Final = 500  # milliseconds


class WatchdogGone(Exception):
    """The watchdog ended before the command, so nobody knows how the command ended."""


class Watchdog:
    """The process that starts the commands. Many threads may use it."""

    def __init__(self) -> None:
        self._requests, its = socket.socketpair()
        self._lock = threading.Lock()  # a request is sent in two parts
        quiet = subprocess.DEVNULL
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, str(its.fileno())],
                stdin=quiet,
                stdout=quiet,
                stderr=quiet,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    def run(
        self,
        program: str,
        argv: Sequence[str],
        environment: Mapping[bytes, bytes],
        standard: Sequence[int],
        started: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Run a command to its end and return its status, negative for a signal.

        ``standard`` holds the file descriptors of its standard input, output and error. ``started`` is called with its process
        id, which is its group's, too.

        Raises:
            OSError: it cannot be started.
            WatchdogGone: it was killed, or nobody knows how it ended.
        """
        variables = [b"=".join(one) for one in environment.items()]
        body = b"\0".join([os.fsencode(program), *variables, *map(os.fsencode, argv)])
        answer, its = os.pipe()
        try:
            try:
                self._send(watchdog.HEADER.pack(len(body), len(variables)), body, [*standard, its])
            finally:
                os.close(its)
            return _status(_lines(answer), started)
        finally:
            os.close(answer)

    def kill(self) -> None:
        """Kill all commands, and start no more. Takes no lock, so a signal handler may call it."""
        try:
            self._requests.shutdown(socket.SHUT_WR)  # what the watchdog also sees when this process is killed
        except OSError:
            pass  # the watchdog is gone

    def close(self) -> None:
        """End the watchdog; commands that still run are killed."""
        self._requests.close()
        self._process.wait()

    def _send(self, head: bytes, body: bytes, fds: list[int]) -> None:
        try:
            with self._lock:
                socket.send_fds(self._requests, [head], fds)
                self._requests.sendall(body)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise WatchdogGone from error


def _lines(fd: int) -> Iterator[bytes]:
    """Yield the lines that come from a pipe.

    It looks up now and then. Python runs a signal's handler between two calls only, and the kernel can give the signal to another
    thread. A call that waits without end would then keep the handler waiting, too.
    """
    poll, data = select.poll(), b""
    poll.register(fd, select.POLLIN)
    while True:
        if poll.poll(_LOOK):
            if not (part := os.read(fd, 4096)):
                return
            *lines, data = (data + part).split(b"\n")
            yield from lines


def _status(answers: Iterator[bytes], started: Callable[[int], None]) -> int:
    first = next(answers, b"")
    if first.startswith(b"!"):
        number = int(first[1:])
        raise OSError(number, os.strerror(number))
    if first:
        started(int(first[1:]))
    last = next(answers, b"")
    if last:
        return int(last)
    if first:  # nobody else is left to kill it
        try:
            os.killpg(int(first[1:]), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended
    raise WatchdogGone

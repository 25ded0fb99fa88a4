"""A small process that starts the commands of ``onceward pipe``. When onceward is gone, it kills commands that still run.

Commands run in their own sessions, so ctrl-C does not hit them. Without a watchdog a command would go on after ``kill -9`` of
onceward. Nobody would renew its lease, and the next run would start it a second time.

The watchdog is the parent of every command, so it knows each from its first moment. It reads requests from a socket. When the
socket ends, it kills all commands.

A request is two numbers of 4 bytes, with 4 file descriptors: the command's standard input, output and error, and a pipe for
the answer. The first number is the length of the text that follows: the program's path, the environment's variables and the
arguments, separated by NULs. The second number is how many variables there are. The answer is ``+`` and the process id, then
the status (negative for a signal). If the command cannot be started, it is ``!`` and the errno. Each is a line. An answer
without a status means that the watchdog is gone.

The file runs as a script and imports nothing of onceward: it starts in about 10 ms, once per ``onceward pipe``.
"""

import errno
import os
import select
import signal
import socket
import struct
import sys

HEADER = struct.Struct("!II")
_FDS = 4


class CommandWatch:
    """Starts commands, answers for each that ends, and kills the rest at the end."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        requests.set_inheritable(False)
        self._running: dict[int, int] = {}  # process id, which is its group's, too → where its answer goes
        pythons_own = {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores them; a command must not inherit that
        deaf = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # meant for onceward, which decides about the commands
        # What this process was started to ignore, as by nohup, its commands ignore, too.
        self._defaults = {n for n in deaf if signal.getsignal(n) != signal.SIG_IGN} | pythons_own
        # A blocked SIGCHLD would never tell that a command has ended. The commands still find it blocked.
        self._blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for number in deaf:
            signal.signal(number, signal.SIG_IGN)
        self._wake, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def run(self) -> None:
        """Work until the requests end and no command is left."""
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        is_open = True
        while is_open or self._running:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    self._reap()
                elif not self._take():
                    is_open = False
                    poll.unregister(self._requests)
                    self.kill()

    def _take(self) -> bool:
        """Start what the next request asks for; return False at the end of the requests."""
        head, fds = self._received(HEADER.size)
        try:
            size, variables = HEADER.unpack(head) if len(head) == HEADER.size else (0, 0)
            body, _ = self._received(size)
            if not body or len(body) < size:
                return False
            if len(fds) == _FDS:  # else there is no room for them, and the answer is none
                program, *parts = body.split(b"\0")
                self._start(program, parts[:variables], parts[variables:], fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _received(self, size: int) -> tuple[bytes, list[int]]:
        """Return ``size`` bytes (fewer at the end) and the file descriptors that came with them."""
        data, fds = b"", []
        while len(data) < size:
            more, passed, _, _ = socket.recv_fds(self._requests, size - len(data), _FDS)
            fds += passed
            if not more:
                break
            data += more
        for fd in fds:
            os.set_inheritable(fd, False)
        return data, fds

    def _start(self, program: bytes, variables: list[bytes], argv: list[bytes], fds: list[int]) -> None:
        *standard, answer = fds
        fds[:] = standard  # the answer's is closed when there is an answer
        environment = dict(one.split(b"=", 1) for one in variables)
        try:
            pid = self._spawn(program, argv, environment, standard)
        except (OSError, NotImplementedError) as error:  # a system whose posix_spawn begins no session
            _answer(answer, f"!{getattr(error, 'errno', errno.ENOSYS)}\n")
            os.close(answer)
            return
        self._running[pid] = answer
        _answer(answer, f"+{pid}\n")

    def _spawn(self, program: bytes, argv: list[bytes], environment: dict[bytes, bytes], standard: list[int]) -> int:
        return os.posix_spawn(
            program,
            argv,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(standard)],
            setsid=True,
            setsigmask=self._blocked,
            setsigdef=self._defaults,
        )

    def _reap(self) -> None:
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            answer = self._running.pop(pid)
            _answer(answer, f"{os.waitstatus_to_exitcode(status)}\n")
            os.close(answer)

    def kill(self) -> None:
        # None of these is reaped yet, so no number is another process's.
        for pid in self._running:
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # it ended just then


def _answer(fd: int, line: str) -> None:
    try:
        os.write(fd, line.encode())
    except BrokenPipeError:
        pass  # onceward is gone


if __name__ == "__main__":
    watch = CommandWatch(socket.socket(fileno=int(sys.argv[1])))
    try:
        watch.run()
    finally:
        watch.kill()  # all that run when this fails

"""A command that runs once for a key, or once in each window of time: the engine of ``onceward exec``.

The command's output is passed on while it runs, and its end is recorded: exit status and output. A duplicate gets that end.
The record does not wait for whoever reads the output.
"""

import base64
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from onceward.batch.windows import Windows, looking
from onceward.claim.claim import Claim
from onceward.claim.held import current
from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.core.policy import Options
from onceward.once import Once
from onceward.pipe.commands import CommandFailed, Interrupted, described_status, executable, variables_of
from onceward.pipe.watched import Watchdog, WatchdogGone
from onceward.terminal import write_all

KEPT: Final = 65_536  # bytes of each stream that are recorded, at its end
_AT_MOST: Final = 32  # reads of 64 KiB; a Linux pipe holds up to 1 MiB (pipe(7))
_LOOK: Final = 100  # milliseconds between two looks at a pipe that a process left behind keeps open


class CommandStream(NamedTuple):
    """What a command wrote to a standard stream.

    Attributes:
        text: it; in base64 if ``binary``.
        binary: whether it is not UTF-8, or full of control characters.
        cut: how many bytes before it were not recorded.
    """

    text: str
    binary: bool = False
    cut: int = 0

    @property
    def data(self) -> bytes:
        """The bytes, with a note in the place of those that were not recorded."""
        data = base64.b64decode(self.text) if self.binary else self.text.encode()
        return f"[onceward: {self.cut} bytes were not recorded]\n".encode() + data if self.cut else data


class Copied:
    """A pipe for a command's standard stream. A thread reads it, remembers its last bytes, and passes it on.

    Attributes:
        end: the file descriptor that the command writes to.
    """

    def __init__(self, to: int) -> None:
        self._from, self.end = os.pipe()
        os.set_blocking(self._from, False)
        self._to, self._is_read = to, True  # whether somebody reads what is passed on
        self._tail, self._size = b"", 0
        self._rest: deque[bytes] = deque()  # what was read at the end, and is still to be passed on
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)
        self._thread = threading.Thread(target=self._copy, daemon=True)  # the exit does not wait for a stuck one
        self._thread.start()

    def close(self) -> CommandStream:
        """Take what is there, and return it all. A process that the command has left behind is not waited for."""
        os.close(self.end)
        with self._lock:
            for _ in range(_AT_MOST):
                if not (data := self._read()):
                    break
                self._rest.append(data)
            os.close(self._from)
            self._from = -1
        data, cut = self._tail, self._size - len(self._tail)
        encoded = base64.b64encode(data).decode()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return CommandStream(encoded, binary=True, cut=cut)
        if len(msgspec.json.encode(text)) > len(encoded) + 2:  # JSON takes 6 bytes for each control character
            return CommandStream(encoded, binary=True, cut=cut)
        return CommandStream(text, cut=cut)

    def is_passed_on(self, within: float) -> bool:
        """Return whether all of it was passed on. Waits for that, at most ``within`` seconds. Call it after ``close``."""
        self._thread.join(within)
        return not self._thread.is_alive()

    def _copy(self) -> None:
        while (data := self._next()) is not None:
            if not data:
                self._poll.poll(_LOOK)
            elif self._is_read:
                try:
                    write_all(self._to, data)
                except OSError:  # nobody reads any more; the command goes on
                    self._is_read = False

    def _next(self) -> bytes | None:
        with self._lock:
            return self._rest.popleft() if self._rest else self._read()

    def _read(self) -> bytes | None:
        """Return what the command wrote; b"" if nothing is there now, None at the end. The caller holds the lock."""
        if self._from < 0:
            return None
        try:
            data = os.read(self._from, 65_536)
        except BlockingIOError:
            return b""
        self._size += len(data)
        self._tail = (self._tail + data)[-KEPT:]
        return data or None


LOOKS: Final = 0.5  # seconds between two looks at the lease
_SECOND: Final = 2  # the signal that kills

OnFailure = Literal["retry", "record"]


class CommandEnd(NamedTuple):
    """How a command ended.

    Attributes:
        status: its exit status; negative for a signal.
        output: its standard output.
        errors: its standard error.
    """

    status: int
    output: CommandStream
    errors: CommandStream

    @property
    def exit_status(self) -> int:
        """The exit status, as a shell tells it."""
        return self.status if self.status >= 0 else 128 - self.status


class ExecutionEnd(NamedTuple):
    """What :meth:`Execution.run` found.

    Attributes:
        end: how the command ended.
        ran: whether it ran now.
        failed: whether its key was given back, so that the next call runs it again.
    """

    end: CommandEnd
    ran: bool
    failed: bool = False


class NotStarted(BaseException):
    """A signal came before the command was started. No Exception, so that a claim that is being won is given back."""


class Execution:
    """One command, for one key. It runs in a session of its own, and is killed if this process is killed.

    Args:
        once: the ledger.
        argv: the command and its arguments.
        key: what identifies the work.
        name: the namespace of the keys.
        window: run it once in each window, by the ledger's clock; None: once for the key.
        while_running: only one at a time: when it ends, the next call runs it again.
        on_failure: another exit status than 0 gives the key back for a "retry", or is the end to "record".
        **options: see :class:`onceward.Policy`.

    Raises:
        ValueError: the command cannot be found or executed, or an option is not valid.
    """

    def __init__(
        self,
        once: Once,
        argv: Sequence[str],
        key: str,
        *,
        name: str = "exec",
        window: str | None = None,
        while_running: bool = False,
        on_failure: OnFailure = "retry",
        options: Options,
    ) -> None:
        self._windows = None if window is None else Windows(window)
        if self._windows is not None and "retention" not in options:
            keep = once.guards.defaults.retention
            options = {**options, "retention": None if keep is None else max(keep, 2 * self._windows.seconds)}
        self._once = once.using(name=name, **options)
        self._name, self._key, self._argv = name, key, list(argv)
        self._program = executable(argv[0])
        self._while_running, self._records = while_running, on_failure == "record"
        self._pid: int | None = None
        self._has_begun = False
        self._signals: list[int] = []
        self._end: CommandEnd | None = None
        self._streams: tuple[Copied, ...] = ()

    def run(self) -> ExecutionEnd:
        """Run the command, or return the recorded end of an earlier run.

        Raises:
            NotStarted: a signal came while it waited for its key.
            Interrupted: a signal ended it, or the key was lost. The key stays claimed to the end of its lease.
            Busy, Parked, LeaseLost, ResultUnavailable, ResultNotRecorded, StoreError: as their docs say.
            CommandFailed: it could not be started.
        """
        try:
            return self._run()
        finally:
            self._pass_on()

    def _run(self) -> ExecutionEnd:
        if self._while_running:
            with self._once.claim(self._key) as claim:
                end = self._command(claim)
                claim.release(None if not end.status else described_status(end.status))
            return ExecutionEnd(end, ran=True)
        try:
            end = self._once.run(self._place(), self._handle)
        except CommandFailed:
            if self._end is None:
                raise
            return ExecutionEnd(self._end, ran=True, failed=True)
        return ExecutionEnd(end, ran=self._end is not None)

    def _pass_on(self) -> None:
        """Wait until the output has been passed on. A signal ends that, unless it was the one that ended the command."""
        heard = len(self._signals)
        for stream in self._streams:
            while not stream.is_passed_on(LOOKS):
                if len(self._signals) > heard or heard >= _SECOND:
                    return

    def hear(self, number: int) -> None:
        """Pass a signal on to the command; the second kills it. For signal handlers in the thread of :meth:`run`.

        Raises:
            NotStarted: there is no command yet.
        """
        self._signals.append(number)
        if not self._has_begun:
            raise NotStarted
        self._strike(number if len(self._signals) < _SECOND else signal.SIGKILL)

    @property
    def heard(self) -> int | None:
        """The first signal that was passed on."""
        return self._signals[0] if self._signals else None

    def _place(self) -> object:
        if self._windows is None:
            return self._key
        store = self._once.store
        now = drive(looking(store, self._name, boottime), store).now
        return (self._key, self._windows.start(self._windows.moment(now, store.resolution)))

    def _handle(self) -> CommandEnd:
        end = self._end = self._command(current())
        if end.status and not self._records:
            raise CommandFailed(described_status(end.status))
        return end

    def _command(self, claim: Claim) -> CommandEnd:
        """Run it to its end.

        Raises:
            Interrupted: nobody knows what it has done.
        """
        self._has_begun = True
        watchdog, over = Watchdog(), threading.Event()
        output, trouble = self._streams = Copied(1), Copied(2)
        keeper = threading.Thread(target=self._keep, args=(claim, over), daemon=True)
        try:
            environment = {**os.environb, **variables_of(claim)}
            if self._while_running:  # each run is new work, and a service would take the second for the first
                del environment[b"ONCEWARD_DERIVED_KEY"]
            keeper.start()
            status = watchdog.run(self._program, self._argv, environment, [0, output.end, trouble.end], self._started)
        except WatchdogGone:
            raise Interrupted("the process that starts the command was killed") from None
        except OSError as error:
            raise CommandFailed(f"it could not be run: {error}") from error
        finally:
            over.set()
            self._pid = None
            streams = output.close(), trouble.close()
            watchdog.close()
        if status and (self._signals or claim.lost):
            raise Interrupted("the key was lost" if claim.lost and not self._signals else "a signal ended the command")
        return CommandEnd(status, *streams)

    def _started(self, pid: int) -> None:
        self._pid = pid
        for number in self._signals:
            self._strike(number)

    def _keep(self, claim: Claim, over: threading.Event) -> None:
        """Kill the command when its key is lost: another machine may run it by then."""
        while not over.wait(LOOKS):
            if claim.lost:
                self._strike(signal.SIGKILL)  # again, if it has not started yet

    def _strike(self, number: int) -> None:
        if self._pid is not None:
            try:
                os.killpg(self._pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # it has just ended

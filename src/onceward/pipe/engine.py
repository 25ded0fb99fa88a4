"""One run of the engine: read the lines, hand them to workers, wait for the end, and say how it ended."""

import warnings
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple

from onceward.consumers.stop import Stop
from onceward.core.policy import Options
from onceward.errors import KeyMissing, Mismatch, ResultWarning, StoreError
from onceward.keys.json_reading import NotJson
from onceward.keys.ledger_keys import ledger_key
from onceward.keys.paths import StrictPath
from onceward.once import Once
from onceward.pipe.attempt import Interrupted, LineOutcome, Reporter
from onceward.pipe.jobs import Jobs, LineJob
from onceward.pipe.lines import LONGEST, STDIN, Line, Lines, Rejects, read_line
from onceward.pipe.runner import Handler, Runner, Workers

WAIT_BEYOND = 5.0  # seconds to wait beyond a lease, so that the leases of a killed run have lapsed
_FORCED = 2.0  # seconds for the workers to notice that their commands were killed
_NO_SKIP = "each line has its outcome"
_HANDLERS = "onceward.pipe"  # the namespace under which each name's handler is remembered

Why = Literal["done", "left", "malformed", "ledger", "interrupted", "unread"]


class End(NamedTuple):
    """How a run ended.

    Attributes:
        why: ``done``, or what is missing. ``left``: some lines failed, are parked or busy, or the run stopped early.
            ``malformed``: all but malformed lines are done. ``ledger``: the ledger failed. ``interrupted``: by a signal.
            ``unread``: nobody reads the output any more.
        text: why it stopped before the end of the input; empty when it did not.
        counts: how many lines have each outcome.
        running: whether a handler still runs; its key stays claimed to the end of its lease.
    """

    why: Why
    text: str
    counts: dict[str, int]
    running: bool


class NameTaken(ValueError):
    """The keys of this name belong to another handler.

    Cause: Another command ran with this ``--name`` on this ledger.

    Fix: Give this command a name of its own. To replace the earlier command, clear the key in ``key``.

    Attributes:
        before: the handler that used the name first.
        key: the ledger's key that remembers it; clear it to go on with the new handler.
    """

    def __init__(self, name: str, before: str, key: str) -> None:
        super().__init__(f"the keys named {name!r} in this ledger belong to another command.")
        self.before, self.key = before, key


class _Malformed(Exception):
    """The line can never be handled. The text says why."""


class Pipe:
    """Handles each line of a stream of NDJSON exactly once per key.

    Args:
        once: the ledger.
        handler: a :class:`Command` or a :class:`Function`. Close it yourself after the run.
        key: a JMESPath that begins with ``line``, or with the parameter of the handler when that is a function.
        name: the namespace of the keys; one name belongs to one handler.
        jobs: lines to handle at a time.
        lease: seconds after which the keys of a killed run may be taken over.
        max_attempts: failures after which a key is parked; None for no limit.
        wait: seconds to wait for a key that another worker holds; None for the lease and 5 seconds.

    Raises:
        ValueError: an option is not valid.
    """

    def __init__(
        self,
        once: Once,
        handler: Handler,
        *,
        key: str,
        name: str = "pipe",
        jobs: int = 1,
        lease: float = 60.0,
        max_attempts: int | None = None,
        wait: float | None = None,
    ) -> None:
        options: Options = {"lease": lease, "max_attempts": max_attempts, "retention": None, "on_busy": "raise"}
        self._guard = once.guards.for_keys(name, options, no_skip=_NO_SKIP, codec=handler.codec)
        self._key = StrictPath(key, "key", handler.roots)
        self._once, self._handler, self._jobs = once, handler, jobs
        self._wait = lease + WAIT_BEYOND if wait is None else wait

    def run(
        self,
        files: Sequence[str] = (STDIN,),
        *,
        reporter: Reporter | None = None,
        rejects: str | None = None,
        stop: Stop | None = None,
    ) -> End:
        """Handle all lines of ``files``; ``-`` is the standard input.

        Args:
            files: paths of NDJSON files.
            reporter: is told of each line; without one they are only counted.
            rejects: the path of a file that malformed lines are appended to.
            stop: ends the run when it is asked to; ``stop.listen()`` makes it hear SIGINT and SIGTERM.

        Raises:
            NameTaken: another handler used this name before. Nothing ran.
            StoreError: the ledger failed before the first line.
            OSError: a file cannot be read.
        """
        self._own_name()
        runner = Runner(self._guard, self._handler, self._wait)
        run = _Run(runner, self._job, reporter or Reporter(), Rejects(rejects), stop or Stop())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResultWarning)  # the reporter is told of it
            return run.run(files, self._jobs)

    def _job(self, line: Line) -> LineJob:
        """Return the job of a line; raises _Malformed."""
        if line.data is None:
            raise _Malformed(f"longer than {LONGEST} bytes")
        try:
            value = read_line(line.data)
        except NotJson as error:
            raise _Malformed(f"the payload is {error}") from error
        try:
            found = self._key.search(self._handler.roots.named(value))
            if found is None:
                raise _Malformed(f"no key: {self._key.expression!r} finds nothing in this line")
            key = ledger_key(self._guard.name, found)
            return LineJob(line.file, line.number, line.data, key, self._handler.prepare(value))
        except (KeyMissing, RecursionError) as error:
            raise _Malformed(str(error)) from error

    def _own_name(self) -> None:
        """Check that no other handler used the keys of this name before."""
        name, handler = self._guard.name, self._handler
        key = ledger_key(_HANDLERS, name)
        options: Options = {"lease": 5.0, "retention": None, "on_busy": 10.0}
        guard = self._once.guards.for_keys(_HANDLERS, options, no_skip=_NO_SKIP)
        fingerprint = sha256(handler.identity.encode(errors="surrogateescape")).hexdigest()
        try:
            guard.call(key, fingerprint, lambda: handler.target, (), {})
        except Mismatch as mismatch:
            before = guard.call(key, None, lambda: None, (), {})
            raise NameTaken(name, str(before), key) from mismatch


class _Run:
    """Brings lines, workers and reporter together."""

    def __init__(
        self, runner: Runner, job_of: Callable[[Line], LineJob], reporter: Reporter, rejects: Rejects, stop: Stop
    ) -> None:
        self._runner, self._job_of, self._reporter = runner, job_of, reporter
        self._rejects, self._stop = rejects, stop
        self._trouble: str | None = None

    def run(self, files: Sequence[str], workers: int) -> End:
        lines = Lines(files, self._stop, self._rejects.add)
        self._reporter.start(lines.total)
        jobs = Jobs(workers, self._stop)
        try:
            threads = Workers(workers, self._runner, jobs, self._stop, self._outcome)
        except RuntimeError as error:
            return End("left", f"stopped: {error}: raise ulimit -u", self._reporter.counts, False)
        try:
            self._read(lines, jobs)
        except OSError as error:
            self._trouble = f"the input or the --rejects file failed: {error}"
            self._stop.ask()
        jobs.end()
        ended = self._wait(threads, jobs)
        self._rejects.close()
        why, text = self._ending(threads.trouble)
        return End(why, text, self._reporter.counts, not ended)

    def _read(self, lines: Lines, jobs: Jobs) -> None:
        for line in lines:
            self._reporter.read = lines.read
            if line.data is not None and not line.data.strip():
                continue
            try:
                job = self._job_of(line)
            except _Malformed as reason:
                self._reject(line, str(reason))
            else:
                jobs.put(job)
            if self._stop.asked:
                return

    def _reject(self, line: Line, reason: str) -> None:
        self._reporter.malformed(line, reason)
        self._stop_if_broken()
        if line.data is not None:
            self._rejects.add(line.data if line.data.endswith(b"\n") else line.data + b"\n")

    def _outcome(self, job: LineJob, outcome: LineOutcome) -> None:
        self._reporter.outcome(job, outcome)
        self._stop_if_broken()

    def _stop_if_broken(self) -> None:
        if self._reporter.broken is not None:
            self._stop.ask()

    def _wait(self, threads: Workers, jobs: Jobs) -> bool:
        told = told_of_others = False
        while not threads.join(0.1):
            self._reporter.tick()
            waiting, seconds = jobs.waiting()
            if waiting and seconds > 1 and not told_of_others:
                self._reporter.say(
                    f"waiting up to {seconds:.0f} s for {waiting} key(s) that another run holds, or held when it was killed"
                )
                told_of_others = True
            if self._stop.forced:
                return threads.join(_FORCED)
            if self._stop.signalled and not told:
                self._reporter.say("stopping: waiting for running lines; press ctrl-C again to kill them")
                told = True
        return True

    def _ending(self, trouble: BaseException | None) -> tuple[Why, str]:
        broken, counts = self._reporter.broken, self._reporter.counts
        left = counts["failed"] or counts["parked"] or counts["busy"]
        reasons: tuple[tuple[object, Why, str], ...] = (  # the first that holds
            (isinstance(trouble, StoreError), "ledger", f"stopped because the ledger failed: {trouble}"),
            (
                isinstance(trouble, Interrupted),
                "left",
                f"stopped: {trouble}; its keys stay claimed to the end of their leases",
            ),
            (trouble, "left", f"stopped by an error in onceward itself: {trouble!r}"),
            (self._trouble, "left", f"stopped: {self._trouble}"),
            (isinstance(broken, BrokenPipeError), "unread", "stopped because nobody reads the output any more"),
            (broken, "left", f"stopped because the output cannot be written: {broken}"),
            (self._stop.signalled, "interrupted", "interrupted; run the same command again to do the rest"),
            (left, "left", ""),
            (counts["malformed"], "malformed", ""),
        )
        return next(((why, text) for holds, why, text in reasons if holds), ("done", ""))

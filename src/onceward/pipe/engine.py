"""The engine of ``onceward pipe``: it reads lines, hands them to threads, and reports the outcomes."""

import time
import warnings
from collections.abc import Sequence
from hashlib import sha256

from onceward.claim.held import current
from onceward.consumers.stop import Stop
from onceward.core.policy import Options
from onceward.errors import (
    Busy,
    KeyMissing,
    Mismatch,
    Parked,
    ResultNotRecorded,
    ResultUnavailable,
    ResultWarning,
    StoreError,
)
from onceward.keys.json_reading import NotJson, read_json
from onceward.keys.ledger_keys import ledger_key
from onceward.keys.paths import StrictPath
from onceward.once import Once
from onceward.pipe.commands import Command, Interrupted
from onceward.pipe.functions import Function
from onceward.pipe.jobs import Jobs
from onceward.pipe.lines import STDIN, Line, Lines, Rejects
from onceward.pipe.outcomes import End, LineJob, Reporter, Why
from onceward.results.outcomes import describe

WAIT_BEYOND = 5.0  # seconds to wait beyond a lease, so that the leases of a killed run have lapsed
_FORCED = 2.0  # seconds for the threads to notice that their commands were killed
_LOOK_AGAIN = 0.1  # seconds between looks at a key that another worker holds
_SHOWN = 1000  # characters of a handler that are recorded, to show them; its fingerprint identifies it
_NO_SKIP = "each line has its outcome"
_HANDLERS = "onceward.pipe"  # the namespace under which each name's handler is remembered


class NameTaken(ValueError):
    """The keys of this name belong to another handler.

    Cause: Another command ran with this ``--name`` on this ledger.

    Fix: Give this command another name. To replace the earlier command, clear the key in ``key``.

    Attributes:
        before: the handler that used the name first.
        key: the ledger's key that remembers it; clear it to go on with the new handler.
    """

    def __init__(self, name: str, before: str, key: str) -> None:
        super().__init__(f"the keys named {name!r} in this ledger belong to another command.")
        self.before, self.key = before, key


class Pipe:
    """Handles each line of a stream of NDJSON exactly once per key.

    Args:
        once: the ledger.
        handler: a :class:`Command` or a :class:`Function`. Close it yourself after the run.
        key: a JMESPath that begins with ``line``, or with the parameter of the handler when that is a function.
        name: the namespace of the keys; one name belongs to one handler.
        jobs: lines to handle at a time.
        lease: seconds after which another run may take over the keys of a killed run.
        max_attempts: failures after which a key is parked; None for no limit.
        wait: seconds to wait for a key that another worker holds; None for the lease and 5 seconds.

    Raises:
        ValueError: an option is not valid.
    """

    def __init__(
        self,
        once: Once,
        handler: Command | Function,
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
        self._once, self._handler, self._count = once, handler, jobs
        self._wait = lease + WAIT_BEYOND if wait is None else wait

    def run(
        self,
        files: Sequence[str] = (STDIN,),
        *,
        reporter: Reporter | None = None,
        rejects: str | None = None,
        stop: Stop | None = None,
    ) -> End:
        """Handle all lines of ``files``; ``-`` is the standard input. Begin another run only when this one has ended.

        Args:
            files: paths of NDJSON files.
            reporter: gets each line; without one, lines are only counted.
            rejects: the path of a file that malformed lines are appended to.
            stop: ends the run; after ``stop.listen()``, SIGINT and SIGTERM end it too.

        Raises:
            NameTaken: another handler used this name before. Nothing ran.
            StoreError: the ledger failed before the first line.
            OSError: a file cannot be read.
        """
        self._own_name()
        self._stop, self._reporter = stop or Stop(), reporter or Reporter()
        self._cause: tuple[Why, str] | None = None  # why it stops early
        self._said_wait = False
        rejects_file = Rejects(rejects)
        lines = Lines(files, self._stop)
        self._reporter.start()
        jobs = Jobs(self._count, self._stop, self._run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResultWarning)  # the reporter is told of it
            try:
                self._read(lines, rejects_file, jobs)
            except OSError as error:
                self._stop_for("left", f"stopped: the input or the --rejects file failed: {error}")
            jobs.end()
            running = not self._wait_for(jobs)
        rejects_file.close()
        return End(*self._ending(), self._reporter.counts, running)

    def _own_name(self) -> None:
        """Check that no other handler used the keys of this name before."""
        name, handler = self._guard.name, self._handler
        key = ledger_key(_HANDLERS, name)
        options: Options = {"lease": 5.0, "retention": None, "on_busy": 10.0}
        guard = self._once.guards.for_keys(_HANDLERS, options, no_skip=_NO_SKIP)
        fingerprint = sha256(handler.identity.encode(errors="surrogateescape")).hexdigest()
        try:
            guard.call(key, fingerprint, lambda: handler.target[:_SHOWN], (), {})
        except Mismatch as mismatch:
            before = guard.call(key, None, lambda: None, (), {})
            raise NameTaken(name, str(before), key) from mismatch

    # --- the reader ---------------------------------------------------------------------------------------------------

    def _read(self, lines: Lines, rejects: Rejects, jobs: Jobs) -> None:
        for line in lines:
            if not line.data.strip():
                continue
            job = self._job(line)
            if job.key is not None:
                jobs.put(job)
            else:
                self._tell(job, "malformed")
                rejects.add(job.data)
            if self._stop.asked:
                return

    def _job(self, line: Line) -> LineJob:
        """Return the job of a line. One that can never be handled has no key."""
        job = LineJob(line.file, line.number, line.data)
        try:
            value = read_json(line.data)
            value_of_key = self._key.search(self._handler.roots.named(value))
            if value_of_key is None:
                raise KeyMissing(f"no key: {self._key.expression!r} finds nothing in this line")
            key, job.given = ledger_key(self._guard.name, value_of_key), self._handler.prepare(value)
        except NotJson as error:
            job.error = f"the payload is {error}"
        except (KeyMissing, RecursionError) as error:
            job.error = str(error)
        else:
            job.key = key
        return job

    # --- in the threads -----------------------------------------------------------------------------------------------

    def _run(self, job: LineJob) -> float | None:
        """Handle a line once for its key, and tell. Return in how many seconds to try again, because another worker holds its key."""
        try:
            kind = self._handle(job)
            if kind == "busy" and self._waits(job):
                return _LOOK_AGAIN
            self._tell(job, kind)
        except Interrupted as interrupted:
            if interrupted.args:  # something else killed it
                self._stop_for("left", f"stopped: {interrupted}; its keys stay claimed to the end of their leases")
        except StoreError as error:
            self._stop_for("ledger", f"stopped because the ledger failed: {error}")
        except Exception as error:
            self._stop_for("left", f"stopped by an error in onceward itself: {error!r}")
        finally:
            job.files.close()
        return None

    def _handle(self, job: LineJob) -> str:
        """Return the outcome of a line; raises StoreError, Interrupted."""
        assert job.key is not None
        job.error = None
        try:
            value = self._guard.call(job.key, None, self._call, (job,), {})
        except Interrupted:
            raise
        except BaseException as error:  # a called function may raise anything
            job.output = None
            return self._refused(job, error)
        if job.claim is None:
            job.output = self._handler.replayed(value)
            return "replayed"
        job.unstored = job.claim.record.result is None
        return "ran"

    def _call(self, job: LineJob) -> object:
        job.claim = current()
        try:
            return self._handler.handle(job)
        except BaseException as error:
            job.raised = error
            raise

    def _refused(self, job: LineJob, error: BaseException) -> str:
        """Note why a line was refused, and return its outcome; raises StoreError."""
        if error is job.raised and job.claim is not None:
            number, limit = job.claim.attempt, self._guard.policy.max_attempts
            parked = "" if limit is None or number < limit else ", parked"
            notes = "" if limit is None else f" (attempt {number} of {limit}{parked})"
            notes += "".join(f"; {note}" for note in getattr(error, "__notes__", []))
            job.reason, job.error = (job.reason or str(error)) + notes, describe(error) + notes
            return "failed"
        if isinstance(error, ResultNotRecorded):
            raise StoreError(
                f"{error.key}: it succeeded, but this could not be recorded before its lease ended. The next run will run it "
                f"again: {error.__cause__}"
            ) from error
        if isinstance(error, StoreError):
            raise error
        if isinstance(error, ResultUnavailable):
            job.unstored, job.error = True, error.reason
            return "replayed"
        job.error = str(error) or repr(error)
        return "busy" if isinstance(error, Busy) else "parked" if isinstance(error, Parked) else "failed"

    def _waits(self, job: LineJob) -> bool:
        now = time.monotonic()
        if job.give_up is None:
            job.give_up = now + self._wait
            if self._wait > 1 and not self._said_wait:
                self._said_wait = True
                self._reporter.say(
                    f"waiting up to {self._wait:.0f} s for keys that another run holds, or held when it was killed"
                )
        return now < job.give_up

    def _tell(self, job: LineJob, kind: str) -> None:
        job.kind = kind
        self._reporter.outcome(job)
        error = self._reporter.broken
        if isinstance(error, BrokenPipeError):
            self._stop_for("unread", "stopped because nobody reads the output any more")
        elif error is not None:
            self._stop_for("left", f"stopped because the output cannot be written: {error}")

    # --- the end ------------------------------------------------------------------------------------------------------

    def _stop_for(self, why: Why, text: str) -> None:
        self._cause = self._cause or (why, text)
        self._stop.ask()

    def _wait_for(self, jobs: Jobs) -> bool:
        """Wait for the threads, and show the progress meanwhile. Return False if one still runs after a second signal."""
        said_stop = False
        while not jobs.join(0.1):
            self._reporter.tick()
            if self._stop.forced:
                return jobs.join(_FORCED)
            if self._stop.signalled and not said_stop:
                self._reporter.say("stopping: waiting for running lines; press ctrl-C again to kill them")
                said_stop = True
        return True

    def _ending(self) -> tuple[Why, str]:
        counts = self._reporter.counts
        if self._cause is not None:
            return self._cause
        if self._stop.signalled:
            return "interrupted", "interrupted; run the same command again to do the rest"
        if self._stop.asked:
            return "left", "stopped; run the same again to do the rest"
        if counts["failed"] or counts["parked"] or counts["busy"]:
            return "left", ""
        return ("malformed" if counts["malformed"] else "done"), ""

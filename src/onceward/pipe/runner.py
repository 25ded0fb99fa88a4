"""The workers: each takes a job, runs its handler once per key, and reports the outcome."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from onceward.claim.guard import Guard
from onceward.consumers.stop import Stop
from onceward.errors import Busy, Parked, ResultNotRecorded, ResultUnavailable, StoreError
from onceward.pipe.attempt import Interrupted, LineAttempt, LineOutcome
from onceward.pipe.commands import Command
from onceward.pipe.functions import Function
from onceward.pipe.jobs import Jobs, LineJob
from onceward.results.outcomes import describe

_LOOK_AGAIN = 0.1  # seconds between looks at a key that another worker holds

Handler = Command | Function


class Runner(NamedTuple):
    """Runs one handler under one guard, which does not wait for a busy key: that job is put aside."""

    guard: Guard
    handler: Handler
    wait: float  # seconds to wait for a key that another worker holds

    def run(self, attempt: LineAttempt) -> LineOutcome | None:
        """Return what the attempt came to, or None when another worker holds the key: try again later.

        Raises:
            StoreError: the ledger failed.
            Interrupted: the handler was killed.
        """
        try:
            value = self.guard.call(attempt.job.key, None, self.handler.handle, (attempt,), {})
        except Interrupted:
            raise
        except BaseException as error:  # a called function may raise anything
            return self._refused(attempt, error)
        if attempt.claim is None:
            return LineOutcome("replayed", None, self.handler.replayed(value))
        unstored = attempt.claim.record.result is None
        return LineOutcome("ran", None, attempt.output, attempt.errors, unstored)

    def _refused(self, attempt: LineAttempt, error: BaseException) -> LineOutcome | None:
        if error is attempt.error and attempt.claim is not None:
            notes = self._last_attempt(attempt.claim.attempt)
            notes += "".join(f"; {note}" for note in getattr(error, "__notes__", []))
            reason = attempt.reason + notes
            return LineOutcome("failed", describe(error) + notes, None, attempt.errors, reason=reason)
        if isinstance(error, ResultNotRecorded):
            raise StoreError(
                f"{error.key}: it succeeded, but this could not be recorded before its lease ended. The next run will run it "
                f"again: {error.__cause__}"
            ) from error
        if isinstance(error, StoreError):
            raise error
        if isinstance(error, Busy):
            return self._busy(attempt.job, error)
        if isinstance(error, Parked):
            return LineOutcome("parked", str(error))
        if isinstance(error, ResultUnavailable):
            return LineOutcome("replayed", error.reason, unstored=True)
        return LineOutcome("failed", str(error) or repr(error))

    def _last_attempt(self, number: int) -> str:
        limit = self.guard.policy.max_attempts
        return "" if limit is None else f" (attempt {number} of {limit}{', parked' if number >= limit else ''})"

    def _busy(self, job: LineJob, error: Busy) -> LineOutcome | None:
        now = time.monotonic()
        if job.give_up is None:
            job.give_up = now + self.wait
        return None if now < job.give_up else LineOutcome("busy", str(error))


class Workers:
    """Threads that run all jobs.

    Attributes:
        trouble: why they stopped early; None otherwise.
    """

    def __init__(
        self, count: int, runner: Runner, jobs: Jobs, stop: Stop, report: Callable[[LineJob, LineOutcome], None]
    ) -> None:
        self.trouble: BaseException | None = None
        self._runner, self._jobs, self._stop, self._report = runner, jobs, stop, report
        self._threads: list[threading.Thread] = []
        for _ in range(count):
            thread = threading.Thread(target=self._work, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more for this user
                if not self._threads:
                    raise
                break
            self._threads.append(thread)

    def join(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the end of all; return whether it came."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (job := self._jobs.take()) is not None:
            again_in: float | None = None
            attempt = LineAttempt(job)
            try:
                outcome = self._runner.run(attempt)
                if outcome is None:
                    again_in = _LOOK_AGAIN
                else:
                    self._report(job, outcome)
            except Interrupted as interrupted:
                if interrupted.args:  # something else killed it
                    self.trouble = self.trouble or interrupted
                    self._stop.ask()
            except Exception as error:  # raised again, in the main thread
                self.trouble = self.trouble or error
                self._stop.ask()
            finally:
                attempt.files.close()
                self._jobs.done(job, again_in=again_in)

"""One run of ``onceward pipe``: reads, hands out, waits for the end, and says how it ended."""

import os
import sys

from onceward.consumers.stop import Stop
from onceward.errors import StoreError
from onceward.pipe.attempt import Interrupted
from onceward.pipe.jobs import Jobs, LineReader, Malformed
from onceward.pipe.lines import Line, Lines
from onceward.pipe.report import Rejects, Report
from onceward.pipe.runner import Runner, Workers

DONE, LEFT, USAGE, ONLY_MALFORMED, STORE, INTERRUPTED, BROKEN = 0, 1, 2, 3, 4, 130, 141
_FORCED = 2.0  # seconds that the workers have to notice that their commands were killed


class Run:
    """Brings lines, workers and report together.

    Args:
        lines: the input.
        reader: makes jobs of lines.
        runner: runs a job.
        report: is told of everything.
        rejects: takes the malformed lines.
        stop: the signals.
    """

    def __init__(
        self, lines: Lines, reader: LineReader, runner: Runner, report: Report, *, rejects: Rejects, stop: Stop
    ) -> None:
        self._lines, self._reader, self._runner = lines, reader, runner
        self._report, self._rejects, self._stop = report, rejects, stop
        self._trouble: str | None = None

    def run(self, workers: int) -> int:
        """Handle all lines with so many workers at a time; return the exit status."""
        self._stop.listen()
        self._report.start()
        sys.stdout = sys.stderr  # what a called function prints is no result
        jobs = Jobs(workers, self._stop)
        threads = Workers(workers, self._runner, jobs, self._stop, self._report.outcome)
        if threads.count < workers:
            self._report.say(
                f"this system gave {threads.count} threads of {workers}: give fewer --jobs, or raise ulimit -u"
            )
        try:
            if not threads.count:
                raise OSError("no thread can be started")  # as when the input fails
            self._read(jobs)
        except OSError as error:
            self._trouble = f"the input, the --rejects file or a thread failed: {error}"
            self._stop.ask()
        jobs.end()
        ended = self._wait(threads, jobs)
        self._rejects.close()
        status, end = self._ending(threads.trouble)
        self._report.summary(end)
        if self._report.broken is not None and status != BROKEN:
            status = LEFT  # it broke at the summary
        if not ended:
            os._exit(status)  # a called function still runs; its key stays claimed to the end of its lease
        return status

    def _read(self, jobs: Jobs) -> None:
        for line in self._lines:
            self._report.read = self._lines.read
            if line.data is not None and not line.data.strip():
                continue
            try:
                job = self._reader.job(line)
            except Malformed as reason:
                self._reject(line, str(reason))
            else:
                jobs.put(job)
            if self._stop.asked:
                return

    def _reject(self, line: Line, reason: str) -> None:
        self._report.malformed(line, reason)
        if line.data is not None:
            self._rejects.add(line.data if line.data.endswith(b"\n") else line.data + b"\n")

    def _wait(self, threads: Workers, jobs: Jobs) -> bool:
        told = told_of_others = False
        while not threads.join(0.1):
            self._report.tick()
            waiting, seconds = jobs.waiting()
            if waiting and seconds > 1 and not told_of_others:
                self._report.say(
                    f"waiting up to {seconds:.0f} s for {waiting} key(s) that another run holds, or held when it was killed"
                )
                told_of_others = True
            if self._stop.forced:
                return threads.join(_FORCED)
            if self._stop.signalled and not told:
                self._report.say("stopping: what runs is waited for; press ctrl-C again to kill it")
                told = True
        return True

    def _ending(self, trouble: BaseException | None) -> tuple[int, str]:
        broken, counts = self._report.broken, self._report.counts
        left = counts["failed"] or counts["parked"] or counts["busy"]
        first = (  # the first that holds is what the run ended with
            (isinstance(trouble, StoreError), STORE, f"stopped, for the ledger failed: {trouble}"),
            (
                isinstance(trouble, Interrupted),
                LEFT,
                f"stopped: {trouble}; its keys stay claimed to the end of their leases",
            ),
            (trouble, LEFT, f"stopped by an error in onceward itself: {trouble!r}"),
            (self._trouble, LEFT, f"stopped: {self._trouble}"),
            (isinstance(broken, BrokenPipeError), BROKEN, "stopped, for nobody reads the output any more"),
            (broken, LEFT, f"stopped, for the output cannot be written: {broken}"),
            (self._stop.signalled, INTERRUPTED, "interrupted: the same command again does what is left"),
            (left, LEFT, ""),
            (counts["malformed"], ONLY_MALFORMED, ""),
        )
        return next(((status, end) for holds, status, end in first if holds), (DONE, ""))

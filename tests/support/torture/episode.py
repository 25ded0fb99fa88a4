"""Runs one episode: starts its actors, does to them from outside what the plan says, and reads what is left."""

import os
import pickle
import signal
import sys
import traceback
from pathlib import Path

from servers.orphans import die_with
from servers.wrong_clocks import library, wrong_clock
from torture import actor
from torture.facts import Facts, Journal, now
from torture.grounds import GROUNDS
from torture.plan import Plan

HANG = 40.0  # seconds beyond all leases and stops without a line of the journal; a frozen request takes some of them
AT_MOST = 5  # times as long an episode may take that writes lines: a busy machine is slow, and does not hang
TICK = 0.005


class Episode:
    def __init__(self, plan: Plan, folder: Path, server: object, plant: str | None = None) -> None:
        self.plan, self.folder, self.plant = plan, folder, plant
        self._ground = GROUNDS[plan.store](plan, folder, server)
        self.journal = Journal(folder / "journal")
        (folder / "plan").write_bytes(pickle.dumps(plan))
        self._pids: dict[int, int] = {}  # process → number of its actor
        self._stopped: dict[int, float] = {}  # process → when it is continued
        self._stops = 0
        self._signals: list[tuple[float, int, str]] = []

    def run(self) -> Facts:
        """Run it, and return what the journal and the ledger say at the end."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # of actors that do not handle it yet
        url = self._ground.make(self.journal)
        began = now()
        due = sorted((began + worker.start, number) for number, worker in enumerate(self.plan.workers))
        self._patience(began)
        try:
            while due or self._pids:
                while due and due[0][0] <= now():
                    at, number = due.pop(0)
                    pid = self._start(number, url)
                    self._signals += [(at + after, pid, name) for after, name in self.plan.workers[number].signals]
                self._turn()
            self._patience(now())
            self._start(-1, self._ground.calm(url))
            while self._pids:
                self._turn()
        finally:
            self._end()
        return Facts(self.plan, self.folder, *self._ground.read())

    def _patience(self, began: float) -> None:
        self._quiet = HANG + 4 * self.plan.lease
        self._limit, self._last, self._written = began + self._quiet, began + AT_MOST * self._quiet, 0

    def _start(self, number: int, url: str) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._pids[pid] = number
            return pid
        code = 1
        try:
            die_with(parent)
            self._be(number, url)
            code = 0
        except BaseException:
            trace = traceback.format_exc()
            self.journal("crash", number=number, trace=trace)
        finally:
            os._exit(code)

    def _be(self, number: int, url: str) -> None:
        skew = self.plan.workers[number].skew if number >= 0 else 0
        if skew and library() is not None:
            own = [sys.executable, "-m", "torture.actor", str(number), str(self.folder), url, self.plant or ""]
            os.execve(sys.executable, own, {**os.environ, **wrong_clock(f"{skew:+d}h")})
        actor.run(self.plan, number, self.folder, url, self.plant)

    def _turn(self) -> None:
        """Do what is due, and take in which actors have ended or stopped."""
        for at, pid, name in [one for one in self._signals if one[0] <= now()]:
            self._signals.remove((at, pid, name))
            if pid in self._pids:
                os.kill(pid, getattr(signal, name))
        for pid, at in list(self._stopped.items()):
            if at <= now():
                del self._stopped[pid]
                self.journal("was-continued", actor=pid)
                os.kill(pid, signal.SIGCONT)
        for pid in list(self._pids):
            self._look(pid)
        written = (self.folder / "journal").stat().st_size
        if written != self._written:
            self._written = written
            self._limit = max(self._limit, min(now() + self._quiet, self._last))
        if now() > self._limit:
            self._hung()
        signal.sigtimedwait([], TICK)

    def _look(self, pid: int) -> None:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if not found:
            return
        if os.WIFSTOPPED(status):
            pauses = self.plan.pauses
            pause = pauses[self._stops % len(pauses)]
            self._stops += 1
            self._stopped[pid] = now() + pause
            self._limit += pause
            self._last += pause
            self.journal("was-stopped", actor=pid)
            return
        del self._pids[pid]
        self._stopped.pop(pid, None)
        if os.WIFSIGNALED(status):
            self.journal("killed", actor=pid, signal=os.WTERMSIG(status))
        elif os.WEXITSTATUS(status):
            self.journal("broke", actor=pid, code=os.WEXITSTATUS(status))

    def _hung(self) -> None:
        for pid in list(self._pids):
            os.kill(pid, signal.SIGUSR2)  # its stacks
            signal.sigtimedwait([], 0.2)
            self.journal("hung", actor=pid, number=self._pids[pid])
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self._pids[pid]

    def _end(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._ground.leave()
        self.journal.close()

"""A worker of an episode: delivers keys, and journals what its handlers did and what it was told."""

import asyncio
import contextlib
import faulthandler
import logging
import os
import pickle
import signal
import sys
import time
import warnings
from pathlib import Path

import onceward
from onceward import Busy, Once
from onceward.claim.claim import Claim
from servers.wrong_clocks import mend_sleep
from torture import plants, shapes
from torture.facts import Journal
from torture.hands import HANDS
from torture.plan import Delivery, Plan
from torture.points import Points
from torture.strikes import Declined, HardStop, SoftLimit, Timers, strike
from torture.wire import lose_replies

REPLAY_PATIENCE = 4.0  # seconds beyond the lease, on a busy machine


class Actor:
    def __init__(self, plan: Plan, number: int, folder: Path, url: str, plant: str | None = None) -> None:
        self.plan, self.number, self.url = plan, number, url
        self.journal = Journal(folder / "journal")
        self.strikes = self.calls = self.runs = 0
        self.call = ""
        self.task: asyncio.Task | None = None
        self.untold: set[str] = set()
        self.delivery = Delivery([])
        self.acting: set[str] = set()  # steps that this delivery's handlers have still to take
        self.points = Points(lambda kind, frame: strike(self, kind, frame))
        self.timers = Timers(self)
        faulthandler.register(signal.SIGUSR2, file=(folder / f"stacks-{number}").open("w"), all_threads=True)
        warnings.simplefilter("ignore")
        logging.disable()
        sys.unraisablehook = lambda _: None
        self.once = Once(url, name="t", lease=plan.lease)
        if plan.store in HANDS:
            self.hand = HANDS[plan.store](url)
        if plan.store in {"sqlite", "redis"} and number >= 0:
            lose_replies(self.once.store, plan, self.journal, number)
        plants.plant(plant)

    def work(self) -> None:
        for delivery in self.plan.workers[self.number].deliveries:
            self.deliver(delivery)
            # A timer may ring when the delivery has ended.
            with contextlib.suppress(SoftLimit, HardStop, KeyboardInterrupt):
                time.sleep(0.005)
        self.journal("end")

    def drain(self) -> None:
        """Deliver every key until it is done, and once more: without faults, and no longer than a lease may last."""
        limit = time.monotonic() + self.plan.lease + 2 * self.plan.resolution + REPLAY_PATIENCE
        for key in self.plan.keys:
            while (wait := self.deliver(Delivery([key]))) is not None and time.monotonic() < limit:
                time.sleep(min(wait, 0.2) + 0.01)
            self.deliver(Delivery([key]))
        self.journal("end")

    def deliver(self, delivery: Delivery) -> float | None:
        """Deliver; return the seconds after which it may be worth trying again, or None when it is done."""
        self.calls += 1
        self.call = f"{self.number}-{self.calls}"
        self.delivery, self.acting = delivery, set(delivery.steps)
        self.untold, self.wait = set(delivery.keys), None
        self.journal("call", call=self.call, keys=delivery.keys)
        self.points.arm(delivery.strikes)
        self.points.phase = "call"
        self.timers.arm(delivery.timer)
        try:
            shapes.deliver(self, delivery.keys)
        except BaseException as error:
            self.disarm()
            for key in delivery.keys:
                self.tell(key, error=error)
        self.disarm()
        self.journal("told-all", call=self.call, points=self.points.counts)
        return self.wait

    def disarm(self) -> None:
        self.points.disarm()
        self.timers.disarm()

    def tell(self, key: str, value: object = None, error: BaseException | None = None) -> None:
        """Journal what the caller was told about ``key``."""
        phase, self.points.phase = self.points.phase, None
        if key in self.untold:
            self.untold.discard(key)
            if error is None:
                self.journal("told", call=self.call, key=key, value=value)
            else:
                self._tell_error(key, error)
        self.points.phase = phase

    def _tell_error(self, key: str, error: BaseException) -> None:
        if not isinstance(error, onceward.Completed | onceward.ResultUnavailable):
            self.wait = error.retry_after if isinstance(error, Busy) else 0.05
        told = {"error": type(error).__name__, "text": str(error)}
        told |= {"value": getattr(error, "result", None), "retry_after": getattr(error, "retry_after", None)}
        notes = [*getattr(error, "__notes__", ()), *_causes(error)]
        self.journal("told", call=self.call, key=key, notes=notes, **told)

    def enter(self, key: str, claim: Claim) -> str:
        """Journal that a handler of ``key`` begins; return the name of this run."""
        self.points.phase = None
        self.runs += 1
        run = f"{self.number}-{os.getpid()}-{self.runs}"
        self.journal("enter", run=run, key=key, call=self.call, fence=claim.fence)
        return run

    def effect(self, run: str, key: str) -> None:
        self.journal("effect", run=run, key=key)

    def leave(self, run: str, key: str) -> str:
        """Journal that the handler has done all and returns."""
        self.journal("leave", run=run, key=key)
        self.points.phase = "settle"
        return f"{key}/{run}"

    def raised(self, run: str, key: str, error: BaseException) -> None:
        self.journal("raised", run=run, key=key, error=repr(error))
        self.points.phase = "settle"

    def step(self, name: str) -> None:
        """Let happen what the plan says of this place in the handler."""
        kind = self.delivery.steps.get(name)
        if kind in {None, "commit-fails"} or name not in self.acting:  # see Form.insert
            return
        self.acting.discard(name)  # in the first handler of a delivery only
        if kind == "fails":
            raise Declined(name)
        strike(self, kind)


def _causes(error: BaseException) -> list[str]:
    told, causes = error.__cause__ or error.__context__, []
    while told is not None and len(causes) < 10:
        causes.append(f"from {type(told).__name__}: {told}")
        told = told.__cause__ or told.__context__
    return causes


def run(plan: Plan, number: int, folder: Path, url: str, plant: str | None) -> None:
    """Be the actor with this number; the one with -1 delivers all that is left."""
    if plan.store == "dynamodb":
        os.environ.update(AWS_ACCESS_KEY_ID="AKIATEST", AWS_SECRET_ACCESS_KEY="not-a-secret", AWS_REGION="eu-west-1")
    actor = Actor(plan, number, folder, url, plant)
    actor.journal("start", number=number)
    if number < 0:
        actor.drain()
    else:
        actor.work()


if __name__ == "__main__":  # with a wrong wall clock, which takes a process that was started so
    mend_sleep()
    number, folder, url, planted = sys.argv[1:]
    run(pickle.loads((Path(folder) / "plan").read_bytes()), int(number), Path(folder), url, planted or None)

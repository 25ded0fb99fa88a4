"""Crash tests of your own handlers: each point, and each thing that can happen there, in turn."""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import Any, Final, Self, TypedDict, Unpack

from onceward.stores.contract import Store
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from onceward.testing.crash import Crash
from onceward.testing.downstream import EffectMade
from onceward.testing.mishaps import AT_EFFECT, Mishap
from onceward.testing.stage import Stage

Plan = tuple[tuple[int, Mishap], ...]
EVERYTHING: Final = frozenset(Mishap)
_AGAIN = {408, 409, 425, 429}  # a client sends the request again after these, and after 5xx


def is_over(answer: object) -> bool:
    """Return whether the sender of a delivery is content with an answer.

    These ask for the delivery again: an HTTP response of 408, 409, 425, 429 or 5xx, a Lambda response that lists
    ``batchItemFailures``, and a list of :class:`BatchOutcome` of which one has failed.
    """
    status = getattr(answer, "status_code", None)
    if isinstance(answer, dict):
        status = answer.get("statusCode")
        if answer.get("batchItemFailures"):
            return False
    if isinstance(status, int):
        return status < 500 and status not in _AGAIN
    outcomes: Iterable[object] = answer if isinstance(answer, list) else ()
    return not any(getattr(one, "status", None) in {"failed", "busy", "deferred"} for one in outcomes)


class CrashOptions(TypedDict, total=False):
    """The options of :class:`Crashes`.

    Attributes:
        mishaps: what can happen; by default everything.
        depth: how many mishaps a run has at most; 1 by default. With 2, a second mishap can come during the
            recovery, which takes many more runs.
        over: gets the handler's answer, and returns whether the message is done; by default
            :func:`onceward.testing.crashes.is_over`.
        lost: makes the exception of a downstream's lost request or reply from a message; by default ``TimeoutError``.
        ledger: makes the empty ledger of a run, on the clock that it gets, such as ``SqliteStore(path, clock=clock)``; by default in
            memory. Give one for handlers that commit their effect with the record.
    """

    mishaps: Collection[Mishap]
    depth: int
    over: Callable[[Any], bool]
    lost: Callable[[str], Exception]
    ledger: Callable[[ManualClock], Store]


class Crashes:
    """The runs of a crash test. Iterate over it: the body of the loop is the test of one run.

    ::

        def test_an_order_is_charged_once(crashes):
            for crash in crashes:
                bank = crash.downstream(Bank(), by="key")
                crash.deliver(charge, {"id": "order-1"}, bank)
                crash.happened_once()

    The first run has no mishap. Each later one has one mishap, at one request to the ledger or one call of a downstream: the worker is
    killed, paused or cut off. The runs come in the same order each time. Each begins with an
    empty ledger in memory, whatever ledger the ``Once`` of your handler has. The clock is simulated, so nothing waits.

    In pytest the fixture ``crashes`` is one. Elsewhere write ``with Crashes() as crashes``.

    Args:
        clock: the clock of all guards and ledgers during the test.
        **options: see :class:`CrashOptions`. Call it to change them: ``for crash in crashes(depth=2)``.

    Attributes:
        runs: how many runs have begun.
        current: the run that has begun last; None when all have ended.
    """

    def __init__(self, clock: ManualClock | None = None, **options: Unpack[CrashOptions]) -> None:
        self._clock = clock or ManualClock()
        self._options = options
        self._running: list[Generator[Crash, None, None]] = []
        self.runs = 0
        self.current: Crash | None = None

    def __call__(self, **options: Unpack[CrashOptions]) -> "Crashes":
        """Return these runs with other options."""
        self._options = options
        return self

    def __iter__(self) -> Iterator[Crash]:
        self.close()
        self._running.append(self._crashes(**self._options))
        return self._running[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Point each ``Once`` back at its own ledger, if a loop was left before its end."""
        while self._running:
            self._running.pop().close()

    def _crashes(
        self,
        *,
        mishaps: Collection[Mishap] = EVERYTHING,
        depth: int = 1,
        over: Callable[[Any], bool] = is_over,
        lost: Callable[[str], Exception] = TimeoutError,
        ledger: Callable[[ManualClock], Store] = MemoryStore,
    ) -> Generator[Crash, None, None]:
        expected: Counter[EffectMade] = Counter()
        plans: list[Plan] = [()]
        self.runs = untried = 0
        with Stage(self._clock, ledger) as stage:
            while plans:
                plan = plans.pop()
                stage.set()
                self.current = run = Crash(stage, dict(plan), expected, over=over, lost=lost)
                self.runs += 1
                yield run
                if not plan:
                    _check_guarded(run)
                if run.strikes < len(plan):
                    untried += 1
                elif len(plan) < depth:
                    plans += reversed([*_following(plan, run, mishaps)])
        self.current = None
        if untried:
            raise AssertionError(
                f"{untried} of {self.runs} runs did not come to their point, so it was not tried: the handler does not do the "
                "same each time. Take what differs, such as threads or random numbers, out of the test"
            )


def _following(plan: Plan, run: Crash, mishaps: Collection[Mishap]) -> Iterator[Plan]:
    """Yield the plans that strike one point more, after those of ``plan``."""
    begin = plan[-1][0] + 1 if plan else 0
    for number, point in enumerate(run.points[begin:], begin):
        for mishap in point.mishaps:
            if mishap in mishaps:
                yield (*plan, (number, mishap))


def _check_guarded(run: Crash) -> None:
    if all(point.mishaps == AT_EFFECT for point in run.points):
        raise AssertionError(
            "no guarded handler asked its ledger in this run, so there is nothing to crash: call the handler with "
            "crash.deliver(handler, ...), and check that it is decorated with @once(...)"
        )

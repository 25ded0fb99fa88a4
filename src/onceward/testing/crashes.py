"""Crash tests of your own handlers: each point, and each thing that can happen there, in turn."""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import Any, Final, Self, TypedDict, Unpack

from onceward.results.message_entries import MessageEntry
from onceward.stores.contract import Store
from onceward.stores.memory import MemoryStore
from onceward.testing import crash_report
from onceward.testing.clock import ManualClock
from onceward.testing.crash_run import CrashRun
from onceward.testing.downstream import DownstreamCalls, EffectMade, downstream
from onceward.testing.mishaps import AT_EFFECT, Mishap
from onceward.testing.redelivery import Redelivery
from onceward.testing.stage import Stage


class Crash:
    """One run of a crash test. The first run has no mishap; each later one has one at one point of it.

    You get one from a loop over :class:`onceward.testing.Crashes`. ``str(crash)`` tells the story of the run.

    Attributes:
        error: the exception that is the outcome of the last delivery; None if it returned.
    """

    def __init__(self, run: CrashRun) -> None:
        self._run = run
        self.error: Exception | None = None

    def __str__(self) -> str:
        return str(self._run.story)

    @property
    def mishap(self) -> str:
        """What happens in this run, in a sentence; "no mishap" before it has happened."""
        return self._run.story.title

    @property
    def effects(self) -> list[EffectMade]:
        """The effects of downstreams, in order. A repetition that a downstream recognized is not one."""
        return self._run.effects

    @property
    def sent(self) -> list[MessageEntry]:
        """The messages of ``claim.send`` that were sent, each once: consumers know a repetition by its key."""
        return self._run.sent

    @property
    def parked(self) -> bool:
        """Whether a key is parked, and waits for a person."""
        return self._run.parked

    def downstream(self, target: Any, *only: str, by: str | None = None, ignoring: Collection[str] = ()) -> Any:
        """Return ``target`` so that each of its calls is an effect, and a point of this test.

        Args:
            target: a fake of yours, such as ``Bank()``, or a function.
            *only: the methods that have an effect; by default all public ones.
            by: the parameter that takes an idempotency key. A call with the key of an earlier call has no effect, and
                gets the earlier answer, as from a real downstream. If its other arguments differ, :meth:`happened_once`
                fails: a downstream would refuse it, or lose its effect.
            ignoring: parameters that may differ between two calls of the same effect, such as ``fence``.

        Raises:
            AttributeError: ``target`` has no method of a name in ``only``.
        """
        for method in only:
            getattr(target, method)  # a misspelt name would be no effect, and the test would find nothing
        name = getattr(target, "__name__", type(target).__name__)
        return downstream(target, DownstreamCalls(name, only, by, ignoring, self._run.call))

    def deliver(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """Call ``function`` as a queue does: again after a crash or an error until it is over, then once more.

        A coroutine function gets an event loop of its own each time.

        Returns:
            What it returned; None if its outcome is an exception, see ``error``.

        Raises:
            AssertionError: it is not over after 10 deliveries.
        """
        ended = Redelivery(self._run, lambda: function(*args, **kwargs)).deliver()
        self.error = ended.error
        return ended.answer

    async def deliver_async(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """Like :meth:`deliver`, in the running event loop."""
        ended = await Redelivery(self._run, lambda: function(*args, **kwargs)).deliver_async()
        self.error = ended.error
        return ended.answer

    def happened_once(self, *, may_repeat: Collection[str] = ()) -> None:
        """Check that this run had the same effects, equally often, as the run without a mishap.

        Effects are the calls of downstreams, and the messages that have left. If a key ended parked, effects may be missing, because
        a person looks at them.

        Args:
            may_repeat: names of effects that may happen again after a crash, such as "Mailer.send".

        Raises:
            AssertionError: an effect is missing, or happened too often, or two have one key; the message describes the
                run, and what to change. Or there is no effect at all, so there is nothing to check.
        """
        __tracebackhide__ = True
        run, effects = self._run, self._run.count_effects()
        if not run.expected and not effects:
            raise AssertionError(crash_report.NOTHING)
        for effect, first in run.clashes:
            raise AssertionError(crash_report.clash(run.story, effect, first))
        excess = {e: n for e, n in (effects - run.expected).items() if e.name not in may_repeat}
        missing = {} if run.parked else run.expected - effects
        if excess or missing:
            raise AssertionError(crash_report.complaint(run.story, effects, run.expected, excess, missing))


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
                run = CrashRun(stage, dict(plan), expected, over=over, lost=lost)
                self.current = crash = Crash(run)
                self.runs += 1
                yield crash
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


def _following(plan: Plan, run: CrashRun, mishaps: Collection[Mishap]) -> Iterator[Plan]:
    """Yield the plans that strike one point more, after those of ``plan``."""
    begin = plan[-1][0] + 1 if plan else 0
    for number, point in enumerate(run.points[begin:], begin):
        for mishap in point.mishaps:
            if mishap in mishaps:
                yield (*plan, (number, mishap))


def _check_guarded(run: CrashRun) -> None:
    if all(point.mishaps == AT_EFFECT for point in run.points):
        raise AssertionError(
            "no guarded handler asked its ledger in this run, so there is nothing to crash: call the handler with "
            "crash.deliver(handler, ...), and check that it is decorated with @once(...)"
        )

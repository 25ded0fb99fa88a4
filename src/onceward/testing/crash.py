"""One run of a crash test: its deliveries, the mishap that strikes one of them, and its effects."""

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, cast

from onceward.claim.lease import CURRENT
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.record import COMPLETED, PARKED
from onceward.errors import OncewardError, Parked
from onceward.results.message_entries import MessageEntry, unsent_of
from onceward.testing import crash_report
from onceward.testing.downstream import DownstreamCalls, EffectMade, downstream
from onceward.testing.mishaps import AT_EFFECT, Ask, Mishap, Point, label_of, transient
from onceward.testing.stage import ACTORS, Act, Killed, Stage

MOST: Final = 10  # deliveries of one message


class Delivered(NamedTuple):
    """How one delivery ended. Without an error, and if the worker was not killed, ``answer`` is what it returned."""

    answer: object = None
    error: Exception | None = None
    killed: bool = False


Deliveries = Steps[Delivered]
Call = Callable[[], Any]  # makes one delivery


class Crash:
    """One run of a crash test. The first run has no mishap; each later one has one at one point of it.

    You get one from a loop over :class:`onceward.testing.Crashes`. ``str(crash)`` tells the story of the run.

    Attributes:
        error: the exception that is the outcome of the last delivery; None if it returned.
        effects: the effects of downstreams, in order. A repetition that a downstream recognized is not one.
        points: the points that this run has come to.
        strikes: how many mishaps have happened.
    """

    def __init__(
        self,
        stage: Stage,
        plan: Mapping[int, Mishap],
        expected: Counter[EffectMade],
        *,
        over: Callable[[Any], bool],
        lost: Callable[[str], Exception],
    ) -> None:
        self._stage, self._plan, self._over, self._lost = stage, plan, over, lost
        self._expected = expected  # how often each effect happens without a mishap; the first run finds out
        self.error: Exception | None = None
        self.effects: list[EffectMade] = []
        self.points: list[Point] = []
        self.strikes = 0
        self._answers: dict[object, tuple[EffectMade, object, Act]] = {}
        self._clashes: list[tuple[EffectMade, EffectMade]] = []  # calls taken for a repetition of another one
        self._story = crash_report.CrashStory()
        self._is_dead = self._is_gone = self._awaits = False
        self._lease = 60.0  # seconds: the longest of this run
        self._other: Act | None = None  # lets another worker get the message
        stage.prompt = self._exchange

    def __str__(self) -> str:
        return str(self._story)

    @property
    def mishap(self) -> str:
        """What happens in this run, in a sentence; "no mishap" before it has happened."""
        return self._story.title

    @property
    def sent(self) -> list[MessageEntry]:
        """The messages of ``claim.send`` that were sent, each once: consumers know a repetition by its key."""
        texts = [record.unsent for record in self._stage.records() if record.unsent is not None]
        return [message for text in texts for message in unsent_of(text).messages]

    @property
    def parked(self) -> bool:
        """Whether a key is parked, and waits for a person."""
        return any(record.status == PARKED for record in self._stage.records())

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
        return downstream(target, DownstreamCalls(name, only, by, ignoring, self._called))

    def deliver(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """Call ``function`` as a queue does: again after a crash or an error until it is over, then once more.

        A coroutine function gets an event loop of its own each time.

        Returns:
            What it returned; None if its outcome is an exception, see ``error``.

        Raises:
            AssertionError: it is not over after 10 deliveries.
        """
        return drive(self._all(partial(function, *args, **kwargs)), ACTORS)

    async def deliver_async(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """Like :meth:`deliver`, in the running event loop."""
        return await drive_async(self._all(partial(function, *args, **kwargs)), ACTORS)

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
        expected, effects = self._expected, Counter(self.effects) + self._messages()
        if not expected and not effects:
            raise AssertionError(crash_report.NOTHING)
        for effect, first in self._clashes:
            raise AssertionError(crash_report.clash(self._story, effect, first))
        excess = {e: n for e, n in (effects - expected).items() if e.name not in may_repeat}
        missing = {} if self.parked else expected - effects
        if excess or missing:
            raise AssertionError(crash_report.complaint(self._story, effects, expected, excess, missing))

    def _messages(self) -> Counter[EffectMade]:
        return Counter(EffectMade(f"message to {one.to}", (one.body,)) for one in self.sent)

    # --- its deliveries: what a queue does with one message ---------------------------------------------------------------

    def _all(self, call: Call) -> Steps[object]:
        counted = len(self.effects)
        self._other = Act(partial(self._meanwhile, call), partial(self._meanwhile_async, call))
        ended = yield from self._until_over(call, "delivered")
        if not self._plan:
            self._expected.update(self.effects[counted:])
            messages = self._messages()
            for effect in [effect for effect in self._expected if effect in messages]:
                del self._expected[effect]
            self._expected.update(messages)
        self._stage.clock.advance(1)
        yield from self._delivery(call, "delivered once too often")
        self.error = ended.error
        return ended.answer

    def _until_over(self, call: Call, title: str = "meanwhile, another worker") -> Deliveries:
        for _ in range(MOST):
            before = self.strikes
            ended = yield from self._delivery(call, title)
            if ended.killed:
                before = self.strikes
                ended = yield from self._delivery(call, "redelivered at once")
            if self._is_over(ended, is_struck=before != self.strikes):
                return ended
            self._lapse()
            title = "redelivered after the lease"
        raise AssertionError(f"the delivery is not over after {MOST} tries\n\n{self._story}") from ended.error

    def _delivery(self, call: Call, title: str) -> Deliveries:
        self._begin(title)
        ended: Delivered = yield Act(partial(self._delivered, call), partial(self._delivered_async, call))
        how = "killed" if ended.killed else crash_report.describe_answer(ended.answer, ended.error)
        self._story.note(f"→ {how}")
        return ended

    def _is_over(self, ended: Delivered, *, is_struck: bool) -> bool:
        if ended.killed:
            return False
        if ended.error is None:
            return self._over(ended.answer)
        if isinstance(ended.error, Parked):
            return True
        # If nothing is left to do for any key, the exception is the recorded outcome.
        statuses = {record.status for record in self._stage.records()}
        is_settled = bool(statuses) and statuses <= {COMPLETED, PARKED}
        return is_settled and not (is_struck or isinstance(ended.error, OncewardError))

    def _begin(self, title: str) -> None:
        """Note that a worker begins a delivery, or goes on after a pause."""
        self._story.begin(title)
        self._is_dead = self._is_gone = False

    def _lapse(self) -> None:
        """Let all leases end."""
        self._stage.clock.advance(self._lease + 1)

    def _meanwhile(self, call: Call) -> None:
        """Let another worker get the message, while one is paused in this thread."""
        if asyncio._get_running_loop() is None:  # the documented one raises where there is none
            self._rest(call)
            return
        # No second loop can run in this thread.
        thread = threading.Thread(target=partial(_elsewhere().run, self._rest, call))
        thread.start()
        thread.join()

    async def _meanwhile_async(self, call: Call) -> None:
        """Like :meth:`_meanwhile`, while one is paused in this event loop."""
        if self._awaits:
            await drive_async(self._until_over(call), ACTORS)
            return
        # What blocks must not block this loop: it may need it.
        await asyncio.get_running_loop().run_in_executor(None, _elsewhere().run, self._rest, call)

    def _rest(self, call: Call) -> None:
        drive(self._until_over(call), ACTORS)

    def _delivered(self, call: Call) -> Delivered:
        def make() -> object:
            answer = call()
            self._awaits = hasattr(answer, "__await__")
            return asyncio.run(_awaiting(answer)) if self._awaits else answer

        try:
            return self._ended(_elsewhere().run(make))
        except BaseException as error:
            return self._ended(error=error)

    async def _delivered_async(self, call: Call) -> Delivered:
        async def make() -> object:
            answer = call()
            self._awaits = hasattr(answer, "__await__")
            return await answer if self._awaits else answer

        try:
            return self._ended(await asyncio.get_running_loop().create_task(make(), context=_elsewhere()))
        except BaseException as error:
            return self._ended(error=error)

    def _ended(self, answer: object = None, error: BaseException | None = None) -> Delivered:
        if self._is_dead:
            return Delivered(killed=True)
        if error is not None and not isinstance(error, Exception):
            raise error
        return Delivered(answer, error)

    # --- what strikes: the calls of the ledger and of downstreams go through here -----------------------------------------

    def _exchange(self, ask: Ask, act: Act, mishaps: tuple[Mishap, ...]) -> Steps[object]:
        """Make an exchange with the ledger. ``mishaps`` is what can happen to it."""
        for write in ask.writes:
            self._lease = max(self._lease, write.lease or 0.0)
        if self._is_gone and not self._is_dead:
            self._stage.clock.advance(self._lease / 2)  # else nobody would ever give up
            raise transient("the ledger is out of reach")
        return (yield from self._struck(Point(label_of(ask), mishaps), _made(act), transient))

    def _called(self, effect: EffectMade, marks: object, act: Act) -> Steps[object]:
        """Make a call of a downstream, or answer as it did to the call that this one repeats.

        ``marks`` is what the downstream knows the call by; it knows no repetition of one with None.
        """
        return (yield from self._struck(Point(str(effect), AT_EFFECT), self._effect(effect, marks, act), self._lost))

    def _effect(self, effect: EffectMade, marks: object, act: Act) -> Steps[object]:
        if marks in self._answers:
            first, answer, _ = self._answers[marks]
            if effect != first:
                self._clashes.append((effect, first))
            return answer
        answer = yield act
        self.effects.append(effect)
        if marks is not None:
            self._answers[marks] = effect, answer, act  # which keeps the downstream, as marks have its id
        return answer

    def _struck(self, point: Point, made: Steps[object], lost: Callable[[str], Exception]) -> Steps[object]:
        """Make what happens at a point, unless the mishap of this run comes in between. ``lost`` makes the error of a lost one."""
        if self._is_dead:
            raise Killed
        mishap = self._plan.get(len(self.points))
        self.points.append(point)
        self._story.note(point.label)
        if mishap is not None:
            self.strikes += 1
            self._story.strike(mishap, point)
        self._is_gone = self._is_gone or mishap is Mishap.LEDGER_GONE
        if mishap is Mishap.KILLED_BEFORE:
            self._is_dead = True
            raise Killed
        if mishap in {Mishap.LEDGER_GONE, Mishap.REQUEST_LOST}:
            raise lost(f"{point.label}: the request was lost")
        if mishap is Mishap.PAUSED:
            self._lapse()
            if self._other is not None:
                yield self._other  # another worker gets the message
            self._begin("the paused worker goes on")
        answer = yield from made
        if mishap is Mishap.KILLED_AFTER:
            self._is_dead = True
            raise Killed
        if mishap is Mishap.REPLY_LOST:
            raise lost(f"{point.label}: the reply was lost")
        return answer


def _made(act: Act) -> Steps[object]:
    return (yield act)


async def _awaiting(answer: Any) -> object:
    return cast("object", await answer)


def _elsewhere() -> contextvars.Context:
    """Return a context in which no claim is held."""
    context = contextvars.copy_context()
    context.run(CURRENT.set, None)
    return context

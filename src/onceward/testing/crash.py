"""What a crash test sees of one run."""

from collections.abc import Callable, Collection
from typing import Any

from onceward.results.message_entries import MessageEntry
from onceward.testing import crash_report
from onceward.testing.crash_run import CrashRun
from onceward.testing.downstream import DownstreamCalls, EffectMade, downstream
from onceward.testing.redelivery import Redelivery


class Crash:
    """One run of a crash test. The first run has no mishap; each later one has one at one point of it.

    You get one from a loop over :class:`onceward.testing.Crashes`. As text it is the story of the run.

    Attributes:
        error: the exception that is the outcome of the last delivery; None if it returned.
    """

    def __init__(self, run: CrashRun) -> None:
        self._run = run
        self.error: Exception | None = None

    def __str__(self) -> str:
        return str(self._run)

    @property
    def mishap(self) -> str:
        """What happens in this run, in a sentence; "no mishap" before it has happened."""
        return self._run.story.title

    @property
    def effects(self) -> list[EffectMade]:
        """The effects that downstreams made, in order, without repetitions that a downstream knew."""
        return self._run.effects

    @property
    def sent(self) -> list[MessageEntry]:
        """The messages of ``claim.send`` that have left, each once: their consumers know a repetition by its key."""
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
            by: the parameter that takes an idempotency key. A call with the key of an earlier one gets that one's answer, and
                has no effect, as downstreams do that take ``claim.key()``. If its other arguments differ, :meth:`happened_once` says
                so: a downstream would refuse it, or lose its effect.
            ignoring: parameters that may differ between two calls of the same effect, such as ``fence``.

        Raises:
            AttributeError: ``target`` has no method of a name in ``only``.
        """
        for method in only:
            getattr(target, method)  # a misspelt name would be no effect, and the test would find nothing
        name = getattr(target, "__name__", type(target).__name__)
        return downstream(target, DownstreamCalls(name, only, by, ignoring), self._run)

    def deliver(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """Call ``function`` as a queue does: again after a crash or an error, until it is over, and then once too often.

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
        """Check that each effect of the run without a mishap happened here as often as there, and no other one.

        Effects are the calls of downstreams, and the messages that have left. If a key ended parked, effects may be missing, because
        a person looks at them.

        Args:
            may_repeat: names of effects that may happen again after a crash, such as "Mailer.send".

        Raises:
            AssertionError: an effect is missing, or happened too often, or two have one key; the message tells the run, and what to
                change. Or there is no effect at all, so that this check would find nothing.
        """
        __tracebackhide__ = True
        run, made = self._run, self._run.made()
        if not run.expected and not made:
            raise AssertionError(crash_report.NOTHING)
        for effect, first in run.clashes:
            raise AssertionError(crash_report.clash(run.story, effect, first))
        excess = {e: n for e, n in (made - run.expected).items() if e.name not in may_repeat}
        missing = {} if run.parked else run.expected - made
        if excess or missing:
            raise AssertionError(crash_report.complaint(run.story, made, run.expected, excess, missing))

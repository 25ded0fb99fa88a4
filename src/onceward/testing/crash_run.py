"""One run of a crash test: its deliveries, the mishap that strikes one of them, and its effects."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED, PARKED
from onceward.results.message_entries import MessageEntry, unsent_of
from onceward.testing import crash_report
from onceward.testing.downstream import EffectMade
from onceward.testing.mishaps import AT_EFFECT, Ask, Mishap, Point, label_of, transient
from onceward.testing.stage import Act, Killed, Stage


class CrashRun:
    """One run of a crash test, as its parts see it.

    Attributes:
        effects: the effects that downstreams made, in order, without repetitions that a downstream knew.
        over: gets an answer, and returns whether the message is done.
        expected: how often each effect happens without a mishap; the first run finds out.
        points: the points that this run came to.
        clashes: calls that a downstream took for a repetition of another one.
        story: what happened.
        strikes: how many mishaps have happened.
        is_dead: whether the worker of the current delivery is dead.
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
        self._stage = stage
        self._plan = plan
        self.over = over
        self._lost = lost
        self.expected = expected
        self.points: list[Point] = []
        self.effects: list[EffectMade] = []
        self._answers: dict[object, tuple[EffectMade, object, Act]] = {}
        self.clashes: list[tuple[EffectMade, EffectMade]] = []
        self.story = crash_report.CrashStory()
        self.strikes = 0
        self.is_dead = self._is_gone = False
        self._lease = 60.0  # seconds: the longest of this run
        self._counted = 0
        self._other: Act | None = None
        stage.prompt = self.exchange

    @property
    def parked(self) -> bool:
        """Whether a key is parked."""
        return any(record.status == PARKED for record in self._stage.records())

    @property
    def sent(self) -> list[MessageEntry]:
        """The messages of ``claim.send`` that were sent, each once: consumers know a repetition by its key."""
        texts = [record.unsent for record in self._stage.records() if record.unsent is not None]
        return [message for text in texts for message in unsent_of(text).messages]

    def deliver_by(self, other: Act) -> None:
        """Note that a message is about to be delivered. ``other`` lets another worker get it."""
        self._counted = len(self.effects)
        self._other = other

    def count_effects(self) -> Counter[EffectMade]:
        """Return how often each effect happened, messages that have left included."""
        return Counter(self.effects) + self._messages()

    def _messages(self) -> Counter[EffectMade]:
        return Counter(EffectMade(f"message to {one.to}", (one.body,)) for one in self.sent)

    # --- its deliveries (``redelivery.py``) ---------------------------------------------------------------------------

    def begin(self, title: str) -> None:
        """Note that a worker begins a delivery, or goes on after a pause."""
        self.story.begin(title)
        self.is_dead = self._is_gone = False

    def lapse(self) -> None:
        """Let all leases end."""
        self._stage.clock.advance(self._lease + 1)

    def is_settled(self) -> bool:
        """Return whether nothing is left to do for any key."""
        records = [*self._stage.records()]
        return bool(records) and all(record.status in {COMPLETED, PARKED} for record in records)

    def is_over(self) -> None:
        """Note that a message is done with, and will come once too often."""
        if not self._plan:
            self.expected.update(self.effects[self._counted :])
            messages = self._messages()
            for effect in [effect for effect in self.expected if effect in messages]:
                del self.expected[effect]
            self.expected.update(messages)
        self._stage.clock.advance(1)

    # --- what strikes: the calls of the ledger and of downstreams go through here -----------------------------------------

    def exchange(self, ask: Ask, act: Act, mishaps: tuple[Mishap, ...]) -> Steps[object]:
        """Make an exchange with the ledger. ``mishaps`` is what can happen to it."""
        for write in ask.writes:
            self._lease = max(self._lease, write.lease or 0.0)
        if self._is_gone and not self.is_dead:
            self._stage.clock.advance(self._lease / 2)  # else nobody would ever give up
            raise transient("the ledger is out of reach")
        return (yield from self._struck(Point(label_of(ask), mishaps), _made(act), transient))

    def call(self, effect: EffectMade, marks: object, act: Act) -> Steps[object]:
        """Make a call of a downstream, or answer as it did to the call that this one repeats.

        ``marks`` is what the downstream knows the call by; it knows no repetition of one with None.
        """
        return (yield from self._struck(Point(str(effect), AT_EFFECT), self._effect(effect, marks, act), self._lost))

    def _effect(self, effect: EffectMade, marks: object, act: Act) -> Steps[object]:
        if marks in self._answers:
            first, answer, _ = self._answers[marks]
            if effect != first:
                self.clashes.append((effect, first))
            return answer
        answer = yield act
        self.effects.append(effect)
        if marks is not None:
            self._answers[marks] = effect, answer, act  # which keeps the downstream, as marks have its id
        return answer

    def _struck(self, point: Point, made: Steps[object], lost: Callable[[str], Exception]) -> Steps[object]:
        """Make what happens at a point, unless the mishap of this run comes in between. ``lost`` makes the error of a lost one."""
        if self.is_dead:
            raise Killed
        mishap = self._plan.get(len(self.points))
        self.points.append(point)
        self.story.note(point.label)
        if mishap is not None:
            self.strikes += 1
            self.story.strike(mishap, point)
        self._is_gone = self._is_gone or mishap is Mishap.LEDGER_GONE
        if mishap is Mishap.KILLED_BEFORE:
            self.is_dead = True
            raise Killed
        if mishap in {Mishap.LEDGER_GONE, Mishap.REQUEST_LOST}:
            raise lost(f"{point.label}: the request was lost")
        if mishap is Mishap.PAUSED:
            self.lapse()
            if self._other is not None:
                yield self._other  # another worker gets the message
            self.begin("the paused worker goes on")
        answer = yield from made
        if mishap is Mishap.KILLED_AFTER:
            self.is_dead = True
            raise Killed
        if mishap is Mishap.REPLY_LOST:
            raise lost(f"{point.label}: the reply was lost")
        return answer


def _made(act: Act) -> Steps[object]:
    return (yield act)

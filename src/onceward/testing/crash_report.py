"""What a person reads of a run of a crash test: what happened, and what to change."""

from collections import Counter
from collections.abc import Mapping

from onceward.testing.downstream import EffectMade
from onceward.testing.mishaps import Mishap, Point

_TWICE = """\
The ledger cannot tell a crash before an effect from one after it, so the next attempt makes the effect again. Either
- give the downstream a key that is the same on each attempt, claim.key("charge"), and tell this test of it, by="...";
- or let a step find out: claim.step("charge", bank.charge, order, on_lapse=function), or on_lapse="park";
- or let a person decide: on_lapse="park" and on_error="park" of the guard. With on_lapse="park" alone, a handler that raises after its
  effect runs again;
- or commit the effect with the record: claim.transaction(connection), claim.step_transaction(...), claim.transact(...)."""
_MISSING = """\
The delivery counts as done although an effect is missing. Look for
- an `except` that hides an error of onceward or of the downstream: let it go on, so that the queue delivers again;
- on_busy="skip" at a queue that delivers again before the lease ends: the message is taken as done while its worker is dead;
- an effect before or after the guarded function, which no later delivery makes."""

_CLASH = """\
A downstream takes a call with a known key for a repetition: it refuses the call, or answers as it did to the first one, and the effect
is lost. Look for
- one key for two effects: give each its own, claim.key("charge") and claim.key("refund");
- an argument that differs from attempt to attempt, such as a time: take it from the input, or leave it out with ignoring={"..."}."""

NOTHING = """\
No effect has happened in this crash test, so it would find nothing. Call the handler with crash.deliver(handler, ...), and give it each fake
as crash.downstream(fake). An effect that a handler commits to a database is not seen here: count its rows in your test instead."""


class CrashStory:
    """What happened in a run, delivery by delivery."""

    def __init__(self) -> None:
        self.title = "no mishap"
        self._lines: list[tuple[str, list[str]]] = []

    def begin(self, title: str) -> None:
        """Note that a delivery begins, or goes on."""
        self._lines.append((title, []))

    def note(self, what: str) -> None:
        """Note what the worker does next."""
        if not self._lines:
            self.begin("outside of a delivery")
        self._lines[-1][1].append(what)

    def strike(self, mishap: Mishap, point: Point) -> None:
        """Note the mishap at a point that was just noted."""
        text = mishap.value.format(point.label)
        self.title = text if self.title == "no mishap" else f"{self.title}; then {text}"
        self.note(f"*** {text} ***")

    def __str__(self) -> str:
        lines = [f"This run: {self.title}."]
        for title, did in self._lines:
            lines += [f"  {title}:", *(f"    {one}" for one in did)]
        return "\n".join(lines)


def describe_answer(answer: object, error: BaseException | None) -> str:
    """Return how a delivery ended, in a line."""
    text = f"returned {answer!r}" if error is None else f"raised {type(error).__name__}: {error}"
    return text if len(text) <= 160 else f"{text[:160]}…"


def complaint(
    story: CrashStory,
    effects: Counter[EffectMade],
    expected: Counter[EffectMade],
    excess: Mapping[EffectMade, int],
    missing: Mapping[EffectMade, int],
) -> str:
    """Return what is wrong with the effects of a run, how it came about, and what to change."""
    lines = [f"{e} happened {_times(effects[e])} instead of {_times(expected[e])}" for e in [*excess, *missing]]
    advice = ([_TWICE] if excess else []) + ([_MISSING] if missing else [])
    return "\n\n".join(["\n".join(lines), str(story), *advice])


def clash(story: CrashStory, effect: EffectMade, first: EffectMade) -> str:
    """Return what is wrong with a call that has the key of another one, how it came about, and what to change."""
    return "\n\n".join([f"{effect} has the idempotency key of {first}", str(story), _CLASH])


def _times(count: int) -> str:
    return {0: "0 times", 1: "once", 2: "twice"}.get(count, f"{count} times")

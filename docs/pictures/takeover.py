"""The picture of a crash and a takeover. It is drawn from a run of the real protocol, on a clock that is moved by hand."""

import logging
from typing import NamedTuple

from svg import box, lines, path, picture, text

from onceward import Busy, LeaseLost, Once
from onceward.stores.memory import MemoryStore
from onceward.testing import ManualClock

LEASE, STEP, TOP = 60, 43, 88
PLACES = {"worker A": 106, "ledger": 318, "worker B": 530, "bank": 724}


class Message(NamedTuple):
    """An arrow: when, who tells whom, what, and whether it is a refusal."""

    seconds: float
    teller: str
    hearer: str
    words: str
    refused: bool = False


def played() -> list[Message]:
    """Run the story, and return what was said."""
    logging.getLogger("onceward").addHandler(logging.NullHandler())  # the refusal is part of the story
    clock = ManualClock()
    start, store = clock(), MemoryStore(clock)
    said: list[Message] = []

    def say(teller: str, hearer: str, words: str, *, refused: bool = False) -> None:
        said.append(Message(clock() - start, teller, hearer, words, refused))

    first = Once(store, name="shop", lease=LEASE, clock=clock)
    second = Once(store, name="shop", lease=LEASE, clock=clock)
    claim = first.acquire("order-42")
    say("worker A", "ledger", "claim order-42")
    say("ledger", "worker A", f"yours: attempt {claim.attempt}, {LEASE} s")
    clock.advance(20)
    claim.extend(LEASE)
    say("worker A", "ledger", "heartbeat: renew the lease")
    say("worker A", "bank", "pay, with claim.key('pay')")
    paid = {claim.key("pay")}
    clock.advance(20)
    try:
        second.acquire("order-42")
    except Busy as busy:
        say("worker B", "ledger", "claim order-42 (redelivered)")
        say("ledger", "worker B", f"busy for {busy.retry_after:.0f} s", refused=True)
    clock.advance(45)
    taken = second.acquire("order-42")
    say("worker B", "ledger", "claim order-42")
    say(
        "ledger",
        "worker B",
        f"yours: attempt {taken.attempt}, {'larger' if taken.fence > claim.fence else 'smaller'} fence",
    )
    same = "same key: not paid again" if taken.key("pay") in paid else "paid twice"
    say("worker B", "bank", "pay, with claim.key('pay')")
    say("bank", "worker B", same)
    taken.complete("paid")
    say("worker B", "ledger", "complete: 'paid'")
    clock.advance(10)
    try:
        claim.complete("paid")
    except LeaseLost as lost:
        say("worker A", "ledger", "complete (only paused)")
        say("ledger", "worker A", f"{type(lost).__name__}: refused", refused=True)
    clock.advance(30)
    outcome = second.run_outcome("order-42", str)
    say("worker B", "ledger", "claim order-42 (redelivered)")
    say("ledger", "worker B", f"replay: {outcome.value!r}")
    return said


def draw() -> str:
    """Return the picture."""
    said = played()
    height = TOP + STEP * len(said) + 20
    parts = []
    for name, x in PLACES.items():
        parts += [
            path(f"M{x} 60 V{height - 16}", "line dash", tip=False),
            box((x - 54, 22), (108, 38)),
            text((x, 46), name, "head mid"),
        ]
    stopped = next(number for number, message in enumerate(said) if message.hearer == "bank")
    woken = next(number for number, message in enumerate(said) if "only paused" in message.words)
    gone = TOP + STEP * stopped + 14
    parts += [
        box((PLACES["worker A"] - 7, gone), (14, STEP * (woken - stopped) - 36), "bad"),
        lines((PLACES["worker A"] + 14, gone + 40), ["killed or paused:", "its lease runs out"], "small on"),
    ]
    for number, (seconds, teller, hearer, words, refused) in enumerate(said):
        y = TOP + STEP * number
        start, end = PLACES[teller], PLACES[hearer]
        parts += [path(f"M{start} {y} H{end - 4 if end > start else end + 4}", "line dash" if refused else "line")]
        parts += [
            text(((start + end) / 2, y - 7), words, "mid small on"),
            text((14, y + 4), f"{seconds:.0f} s", "small"),
        ]
    return picture(
        (800, height), "A worker stops after its effect; another takes over, and the effect is made once", parts
    )

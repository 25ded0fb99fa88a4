"""The workers of the explorer: the protocol's real generators. A ``Node`` is one after a history; ``step`` runs a new generator through a longer one."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from onceward.core import protocol, steps
from onceward.core.drivers import Sleep, Steps
from onceward.core.many import UnsentNote, note_many
from onceward.core.policy import Policy
from onceward.core.protocol import Outcome, Verdict, may_send
from onceward.core.record import COMPLETED, PARKED, Record, Reply, Write
from onceward.core.register import Register
from onceward.core.step_writes import write_steps
from onceward.core.steps import Bid, Lost, Refused, Replay, Settled, Won
from onceward.core.writes import send_lease
from onceward.errors import StoreError

KEY: Final = "key"


class Choice(NamedTuple):
    options: tuple[str, ...]


def text_of(by: str, numbers: list[str]) -> str:
    """Return the text of a record's messages."""
    return f"{by}:{' '.join(numbers)}"


def messages_in(record: Record | None) -> list[str]:
    """Return the numbers of the messages that a record has."""
    return record.unsent.partition(":")[2].split() if record is not None and record.unsent else []


def sending(number: str, fence: int) -> Choice:
    """Return the point where a message of the claim with this fence is sent."""
    return Choice((f"sends message {number} of {fence}",))


def send(cast: "Casting", seat: "Seat", record: Record, until: float) -> Steps[None]:
    """Send a record's messages in order, as long as the send lease is believed in, and strike them out."""
    seat.sending = until
    for number in messages_in(record):
        if seat.clock >= until:
            break
        yield sending(number, record.fence)
    else:
        yield from _noted(cast, seat, record, None)
    seat.sending = 0.0


def relay(cast: "Casting", seat: "Seat", by: str) -> Steps[str]:
    """Send what is due, as a relay does, and a worker that has answered a duplicate."""
    try:
        reply = yield from cast.register.load(KEY)
    except StoreError:
        return "store away"
    held = reply.record
    if held is None or not may_send(held, reply.now):
        return "nothing due"
    taken = yield from _noted(cast, seat, held, text_of(by, messages_in(held)))
    if taken is None:
        return "not taken"
    yield from cast.parts.send(cast, seat, taken.record, taken.until)
    return "relayed"


def _noted(cast: "Casting", seat: "Seat", record: Record, unsent: str | None) -> Steps[Won | None]:
    limit = seat.clock + cast.policy.lease
    times = {"due": send_lease(cast.policy), "keep": cast.policy.retention, "clock": lambda: seat.clock}
    try:
        noted = yield from cast.parts.note(cast.register, record, unsent, **times, until=lambda: limit)
    except StoreError:
        return None
    return noted if isinstance(noted, Won) else None


def note_unsent(store, record, unsent, *, due, keep, clock, until) -> Steps[Won | Lost]:
    (outcome,) = yield from note_many(store, [UnsentNote(record, unsent, due, keep)], clock, until)
    if isinstance(outcome, StoreError):
        raise outcome
    return outcome


class Told(NamedTuple):
    """What a worker was told at the end of one delivery, with its owner id and the record."""

    what: str
    owner: str
    record: Record | None


class Left(NamedTuple):
    """A worker's state between two deliveries, and after it ended or crashed."""

    delivery: int = 0
    effects: tuple[int, ...] = ()
    failures: int = 0
    told: Told | None = None
    seen: Record | None = None  # the record that turned it away as busy
    over: bool = False
    made: tuple[tuple[str, int], ...] = ()  # each step that it made, with its fence


@dataclass
class Seat:
    """What a worker knows outside its generator: its clock, and the claim it believes it holds."""

    clock: float = 0.0
    owner: str = ""
    holds: bool = False
    until: float = 0.0
    effects: tuple[int, ...] = ()
    failures: int = 0
    claiming: bool = False
    made: tuple[tuple[str, int], ...] = ()
    sending: float = 0.0  # until when it believes that it alone sends the key's messages


class Parts(NamedTuple):
    """The protocol under test. Replace a part with a broken one to see the explorer detect it."""

    claim: Callable[[Register, Bid], Steps[Won | Replay | Refused]] = steps.claim
    heartbeat: Callable[..., Steps[list[Won | Lost]]] = steps.heartbeat
    end: Callable[..., Steps[Settled | Lost]] = steps.end
    abandon: Callable[[Register, Bid], Steps[None]] = steps.abandon
    step: Callable[..., Steps[Won | Lost]] = write_steps
    note: Callable[..., Steps[Won | Lost]] = note_unsent
    send: Callable[..., Steps[None]] = send


class Casting(NamedTuple):
    """One worker's role: its number, the register as it sees it, and what it may do."""

    number: int
    register: Register
    parts: Parts
    policy: Policy
    deliveries: int
    beats: int
    fails: bool
    transacts: bool
    steps: int
    messages: int = 0
    relays: bool = False


class Node:
    """A worker in one delivery, that started from ``before`` at ``clock``, after one history. Compare by identity."""

    def __init__(
        self, cast: Casting, before: Left, clock: float, history: tuple[tuple[str, object, float], ...] = ()
    ) -> None:
        self._cast = cast
        self._before = before
        self._start = clock
        self._history = history
        self._next: dict[tuple[str, object, float], Node] = {}
        self.pending: object = None  # what it waits for
        self.trouble: BaseException | None = None
        owner = f"{cast.number}.{before.delivery + 1}"
        self.seat = Seat(clock, owner, effects=before.effects, failures=before.failures, made=before.made)
        self.left = before
        self._run()

    def step(self, kind: str, value: object, clock: float) -> "Node":
        """Return this worker after it is sent ``value``. ``kind`` is "reply", "error" or "interrupt"."""
        event = (kind, tuple(value) if type(value) is list else value, clock)
        if event not in self._next:
            history = (*self._history, (kind, value, clock))
            self._next[event] = Node(self._cast, self._before, self._start, history)
        return self._next[event]

    def _run(self) -> None:
        seat, told = self.seat, None
        script = _deliver(self._cast, seat, Bid(KEY, seat.owner, None, self._cast.policy, lambda: seat.clock))
        try:
            pending = next(script)
            for kind, value, clock in self._history:
                seat.clock = clock
                if kind == "error":
                    pending = script.throw(StoreError(str(value), transient=True))
                elif kind == "interrupt":
                    pending = script.throw(KeyboardInterrupt())
                else:
                    pending = script.send(value)
                while isinstance(pending, Sleep):
                    pending = script.send(None)
            self.pending = pending
        except StopIteration as end:
            what, record = end.value
            told = Told(what, seat.owner, record)
        except Exception as trouble:  # any exception is a finding
            self.trouble = trouble
        self.left = self._left(told)

    def _left(self, told: Told | None) -> Left:
        delivery = self._before.delivery + 1
        over = told is None or told.what in LAST_WORDS or delivery == self._cast.deliveries
        seen = told.record if told and told.what == "busy" else None
        return Left(delivery, self.seat.effects, self.seat.failures, told, seen, over, self.seat.made)


LAST_WORDS = {"completed", "replay", "parked", "refused as parked", "relayed"}
Script = Generator[object, object, tuple[str, Record | None]]  # one delivery; it returns what the worker was told


def _deliver(cast: Casting, seat: Seat, bid: Bid) -> Script:
    if cast.relays:
        return (yield from relay(cast, seat, bid.owner)), None
    seat.claiming = not cast.transacts
    claim: Steps[Won | Settled | Replay | Refused] = (
        _transaction(cast.register, bid) if cast.transacts else cast.parts.claim(cast.register, bid)
    )
    try:
        outcome = yield from claim
    except StoreError:
        return "store away at the claim", None
    except KeyboardInterrupt:
        seat.claiming = False
        try:
            yield from cast.parts.abandon(cast.register, bid)
        except StoreError:
            pass
        return "interrupted", None
    finally:
        seat.claiming = False
    if isinstance(outcome, Replay):
        if outcome.record.due_at is not None:
            yield from relay(cast, seat, bid.owner)
        return "replay", outcome.record
    if isinstance(outcome, Refused):
        return ("busy" if outcome.verdict is Verdict.BUSY else "refused as parked"), outcome.record
    if isinstance(outcome, Settled):
        seat.effects = (*seat.effects, outcome.record.fence)
        return "completed", outcome.record
    seat.holds, seat.until = True, outcome.until
    return (yield from _handle(cast, seat, bid, outcome.record))


def _transaction(register: Register, bid: Bid) -> Steps[Settled | Replay | Refused]:
    """Claim, effect and completion in one write, which is itself the effect."""

    def commit(write: Write, seen: Record | None) -> Steps[Reply]:
        return register.insert(write) if seen is None else register.swap(write, seen)

    return steps.claim(register, bid, steps.Effect(protocol.completed(f"by {bid.owner}"), commit))


def _handle(cast: Casting, seat: Seat, bid: Bid, record: Record) -> Script:
    seat.effects = (*seat.effects, record.fence)
    for name in map(str, range(cast.steps)):
        if name in steps_in(record):
            continue
        if seat.clock >= seat.until:
            return _gone(seat, "lost", record)
        seat.made = (*seat.made, (name, record.fence))
        yield Choice((f"has made step {name}",))
        try:
            held = {"lease": lambda: bid.policy.lease, "clock": bid.clock, "until": lambda: seat.until}
            written = yield from cast.parts.step(cast.register, record, partial(_added, name), bid.policy, **held)
        except StoreError:
            return _gone(seat, "not recorded", record)
        if isinstance(written, Lost):
            return _gone(seat, "lost", written.record)
        record, seat.until = written.record, written.until
    options = ("complete", "fail") if cast.fails else ("complete",)
    for _ in range(cast.beats):
        act = yield Choice((*options, "beat"))
        if act != "beat":
            break
        try:
            renewed = [(record, bid.policy.lease)]
            (beat,) = yield from cast.parts.heartbeat(cast.register, renewed, [bid.policy], bid.clock)
        except StoreError:
            continue
        if isinstance(beat, Lost):
            seat.holds = False
            continue
        record, seat.until = beat.record, beat.until
    else:
        act = yield Choice(options)
    outcome = protocol.completed(f"by {record.owner}")
    if cast.messages:
        outcome = outcome._replace(unsent=text_of(record.owner, [str(n) for n in range(cast.messages)]))
    if act == "fail":
        seat.failures += 1
        outcome = protocol.failed(record, bid.policy, "boom")
    return (yield from _settle(cast, seat, bid, record, outcome))


def steps_in(record: Record | None) -> list[str]:
    """Return the names of the steps that are recorded. The explorer's have no results."""
    return (record.steps or "").split() if record is not None else []


def _added(name: str, text: str | None) -> str:
    return " ".join(dict.fromkeys([*(text or "").split(), name]))


def _gone(seat: Seat, what: str, record: Record | None) -> tuple[str, Record | None]:
    """Return what a worker is told that must not go on. It leaves its claim to the end of the lease."""
    seat.holds = False
    return what, record


def _settle(cast: Casting, seat: Seat, bid: Bid, record: Record, outcome: Outcome) -> Script:
    seat.holds = False  # the handler is done and no longer acts on its belief
    began = seat.clock
    try:
        held = {"clock": bid.clock, "until": lambda: seat.until}
        ended = yield from cast.parts.end(cast.register, record, outcome, bid.policy, **held)
    except StoreError:
        return "not recorded", record
    if isinstance(ended, Lost):
        return "lost", ended.record
    if cast.beats and (yield Choice(("end", "late beat"))) == "late beat":
        # The heartbeat thread chose this claim before it ended, and reads it now.
        try:
            yield from cast.parts.heartbeat(cast.register, [(ended.record, bid.policy.lease)], [bid.policy], bid.clock)
        except StoreError:
            pass
    if outcome.unsent is not None and ended.record.unsent == outcome.unsent:
        yield from cast.parts.send(cast, seat, ended.record, began + send_lease(bid.policy) * 0.99)
    if outcome.status == COMPLETED:
        return "completed", ended.record
    return ("parked" if outcome.status == PARKED else "released"), ended.record

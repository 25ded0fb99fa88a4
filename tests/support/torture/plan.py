"""The plan of an episode, made from its seed alone: who delivers what, and what goes wrong where."""

import random
from dataclasses import dataclass, field

SYNC = ("run", "claim", "batch", "checkpoint", "steps", "messages")
ASYNC = tuple(f"{shape}_async" for shape in SYNC)
SHAPES = {
    "redis": (*SYNC, *ASYNC),
    "sqlite": (*SYNC, *ASYNC, "transaction", "claim_transaction", "step_transaction", "messages_transaction"),
    "dynamodb": (*SYNC, *ASYNC, "transact", "transact_async", "claim_transact", "claim_transact_async"),
    "postgresql": (
        *SYNC,
        *ASYNC,
        "transaction",
        "transaction_async",
        "claim_transaction",
        "claim_transaction_async",
        "step_transaction",
        "step_transaction_async",
        "messages_transaction",
        "messages_transaction_async",
    ),
    "mysql": (
        *SYNC,
        *ASYNC,
        "transaction",
        "transaction_async",
        "claim_transaction",
        "claim_transaction_async",
        "step_transaction",
        "step_transaction_async",
        "messages_transaction",
        "messages_transaction_async",
    ),
}
STORES = ("sqlite", "sqlite", "dynamodb", "postgresql", "mysql", "redis")  # as often as they are drawn
MANY = {"batch", "batch_async", "checkpoint", "checkpoint_async"}
STEPS = {"steps", "steps_async"}
SENDING = {f"messages{one}{form}" for one in ("", "_transaction") for form in ("", "_async")}
IN_SQL = {f"{one}transaction{form}" for one in ("", "claim_", "step_", "messages_") for form in ("", "_async")}
ATOMIC = {*IN_SQL, "transact", "transact_async", "claim_transact", "claim_transact_async"}
WITHIN_REQUEST = {"transact", "transact_async"}  # there is no handler
WITHIN_CLAIM = {"transaction", "transaction_async", *WITHIN_REQUEST}  # there is no claim that outlives a failure
LEASES = {
    "redis": 1.0,
    "sqlite": 0.6,
    "dynamodb": 3.0,
    "postgresql": 1.0,
    "mysql": 2.0,
}  # MySQL: a new connection takes four requests, each of which can be lost
RESOLUTIONS = {"sqlite": 0.01, "redis": 0.01, "dynamodb": 1.0, "postgresql": 0.01, "mysql": 0.01}
# How many points a delivery has before its handler and after it, measured, and a little more.
POINTS = {
    ("sqlite", "one"): (70, 34),
    ("sqlite", "many"): (470, 190),
    ("sqlite", "steps"): (70, 560),
    ("sqlite", "messages"): (70, 195),
    ("sqlite", "atomic"): (80, 125),
    ("sqlite", "step_transaction"): (80, 250),
    ("sqlite", "messages_transaction"): (80, 280),
    ("redis", "one"): (300, 250),
    ("redis", "many"): (1000, 800),
    ("redis", "steps"): (300, 1650),
    ("redis", "messages"): (300, 410),
    ("dynamodb", "one"): (180, 135),
    ("dynamodb", "many"): (900, 680),
    ("dynamodb", "steps"): (180, 1150),
    ("dynamodb", "messages"): (180, 320),
    ("dynamodb", "atomic"): (230, 190),
    ("postgresql", "one"): (245, 250),
    ("postgresql", "many"): (1010, 1000),
    ("postgresql", "steps"): (245, 1650),
    ("postgresql", "messages"): (245, 410),
    ("postgresql", "messages_transaction"): (235, 1100),
    ("postgresql", "messages_transaction_async"): (245, 1250),
    ("postgresql", "step_transaction"): (225, 1300),
    ("postgresql", "step_transaction_async"): (235, 1450),
    ("postgresql", "transaction"): (165, 125),
    ("postgresql", "transaction_async"): (295, 160),
    ("postgresql", "claim_transaction"): (225, 645),
    ("postgresql", "claim_transaction_async"): (235, 810),
    ("mysql", "one"): (245, 250),
    ("mysql", "many"): (1010, 1000),
    ("mysql", "steps"): (245, 1650),
    ("mysql", "messages"): (245, 410),
    ("mysql", "messages_transaction"): (235, 1100),
    ("mysql", "messages_transaction_async"): (245, 1250),
    ("mysql", "step_transaction"): (225, 1300),
    ("mysql", "step_transaction_async"): (235, 1450),
    ("mysql", "transaction"): (165, 125),
    ("mysql", "transaction_async"): (295, 160),
    ("mysql", "claim_transaction"): (225, 645),
    ("mysql", "claim_transaction_async"): (235, 810),
}

RAISES = ("soft", "soft", "hard", "sigint")
IN_HANDLER = (*RAISES, "fork-return", "fork-return", "fork-exit", "fork-raise", "kill", "pause", "reenter", "fails")
IN_CALL = (*RAISES, *RAISES, "fork-exit", "kill", "pause", "reenter")
IN_SETTLING = (*RAISES, *RAISES, *RAISES, "fork-exit", "fork-on", "kill", "pause", "reenter")


@dataclass
class Delivery:
    """One delivery of one key, or of several to a batch or checkpoint.

    Attributes:
        keys: what is delivered.
        strikes: (phase, number of the point, kind), for phases "call" and "settle".
        steps: what happens in the handler, before and after its effect.
        naps: seconds that the handler takes before and after its effect.
        timer: a kind and after how many seconds it strikes, wherever onceward is then.
    """

    keys: list[str]
    strikes: list[tuple[str, int, str]] = field(default_factory=list)
    steps: dict[str, str] = field(default_factory=dict)
    naps: tuple[float, float] = (0.0, 0.0)
    timer: tuple[str, float] | None = None


@dataclass
class Worker:
    """An actor: when it starts, how many hours its wall clock is off, its deliveries, and what it gets from outside.

    Attributes:
        relay: seconds for which it is a relay; 0 for a worker that delivers.
    """

    deliveries: list[Delivery]
    start: float = 0.0
    skew: int = 0
    signals: list[tuple[float, str]] = field(
        default_factory=list
    )  # (seconds after its start, SIGKILL, SIGSTOP or SIGINT)
    relay: float = 0.0


@dataclass
class Plan:
    """An episode.

    Attributes:
        loss: the share of requests that something happens to on the wire.
        outage: from when to when nothing gets through, in seconds after the start; or None.
        dates: by how many seconds the servers' clocks differ.
        pauses: seconds that the stops last, in turn.
    """

    seed: int
    store: str
    shape: str
    workers: list[Worker]
    loss: float = 0.0
    outage: tuple[float, float] | None = None
    dates: float = 0.0
    pauses: tuple[float, ...] = (1.0,)

    @property
    def lease(self) -> float:
        return LEASES[self.store]

    @property
    def resolution(self) -> float:
        return RESOLUTIONS[self.store]

    @property
    def keys(self) -> list[str]:
        return sorted({key for worker in self.workers for delivery in worker.deliveries for key in delivery.keys})

    def __str__(self) -> str:
        many = f"{len(self.workers)} workers" if len(self.workers) > 1 else "1 worker"
        return f"seed {self.seed}: {self.shape} on {self.store}, {many}, loss {self.loss:g}"


def plan(seed: int, stores: tuple[str, ...] = STORES, shape: str | None = None) -> Plan:
    """Return the plan of an episode."""
    chance = random.Random(seed)
    store = chance.choice(stores)
    drawn = chance.choice(SHAPES[store])
    made = Plan(seed, store, shape or drawn, [])
    lease = made.lease
    made.loss = chance.choice((0.0, 0.0, 0.1, 0.3))
    made.pauses = tuple(lease * chance.choice((0.2, 1.5, 1.5, 2.2)) for _ in range(5))
    if store == "dynamodb":
        made.dates = chance.choice((0.0, 0.0, 0.4))
    if store != "sqlite" and chance.random() < 0.15:
        begin = chance.random() * 2
        made.outage = (begin, begin + lease * chance.choice((0.3, 1.2)))
    if chance.random() < 0.6:
        made.workers = [Worker(_alone(chance, made))]
    else:
        made.workers = [_of_many(chance, made, number) for number in range(chance.choice((2, 3)))]
    if made.shape in SENDING:
        made.workers += [_relay(chance, made) for _ in range(chance.choice((0, 1, 1, 2)))]
    return made


def _alone(chance: random.Random, made: Plan) -> list[Delivery]:
    """Return the deliveries of a worker that has the keys to itself, so that it can be replayed to the letter."""
    deliveries = []
    for number in range(8 if made.store == "sqlite" else 5):
        delivery = _delivery(
            chance, made, [f"k{number}"] if made.shape not in MANY else [f"k{number}{c}" for c in "abc"]
        )
        deliveries += [delivery, Delivery(delivery.keys)]
    return deliveries


def _of_many(chance: random.Random, made: Plan, number: int) -> Worker:
    keys = [f"k{n}" for n in range(5)]
    deliveries = []
    for _ in range(2):
        chance.shuffle(keys)
        if made.shape in MANY:
            deliveries.append(_delivery(chance, made, keys[: chance.randint(2, 5)]))
        else:
            deliveries += [_delivery(chance, made, [key]) for key in keys]
    worker = Worker(deliveries, start=chance.random() * 0.3)
    worker.skew = chance.choice((0, 0, 0, -1, 1))
    span = made.lease * 1.5
    for _ in range(chance.choice((0, 1, 2))):
        worker.signals.append((chance.random() * span, chance.choice(("SIGKILL", "SIGSTOP", "SIGSTOP", "SIGINT"))))
    worker.signals.sort()
    return worker


def _relay(chance: random.Random, made: Plan) -> Worker:
    relay = Worker([], start=chance.random() * made.lease, relay=made.lease * chance.choice((0.5, 2, 4)))
    relay.skew = chance.choice((0, 0, 0, -1, 1))
    for _ in range(chance.choice((0, 1, 2))):
        relay.signals.append((chance.random() * relay.relay, chance.choice(("SIGKILL", "SIGSTOP"))))
    relay.signals.sort()
    return relay


def _delivery(chance: random.Random, made: Plan, keys: list[str]) -> Delivery:
    delivery = Delivery(list(keys))
    lease = made.lease
    longest = lease * chance.choice((0.02, 0.02, 0.1, 0.6))
    delivery.naps = (chance.random() * longest, chance.random() * longest)
    is_async = made.shape.endswith("async")
    where = chance.random()
    if where < 0.2:
        kind = chance.choice(IN_HANDLER)
        if is_async and kind.startswith("fork"):
            kind = "fork-exit"  # asyncio's loops do not go on in a child
        delivery.steps[chance.choice(("before", "after"))] = kind
        if made.shape in IN_SQL and chance.random() < 0.7 and made.store != "mysql":  # it defers no constraint
            delivery.steps = {"before": "commit-fails"}
    elif where < 0.75:
        phase = chance.choice(("call", "settle", "settle")) if made.shape not in WITHIN_REQUEST else "call"
        form = (
            "atomic"
            if made.shape in ATOMIC
            else "many"
            if made.shape in MANY
            else "steps"
            if made.shape in STEPS
            else "messages"
            if made.shape in SENDING
            else "one"
        )
        points = POINTS.get((made.store, made.shape)) or POINTS[made.store, form]
        first = 1 + int(chance.random() * points[phase == "settle"])
        kind = chance.choice(IN_CALL if phase == "call" else IN_SETTLING)
        if kind == "fork-on" and (is_async or (made.shape in IN_SQL and made.store in {"postgresql", "mysql"})):
            kind = "fork-exit"  # psycopg itself would go on with its parent's connection
        if is_async and kind in RAISES and chance.random() < 0.5:
            kind = "cancel"
        delivery.strikes.append((phase, first, kind))
        if kind in RAISES and chance.random() < 0.3:  # and another right behind it
            delivery.strikes.append((phase, first + 1 + int(chance.random() * 25), chance.choice(RAISES)))
    elif where < 0.9:
        how = chance.choice(("timer", "async"))
        delivery.timer = (
            f"{how}-{chance.choice(RAISES)}",
            chance.random() ** 2 * longest * 3 + chance.random() * 0.003,
        )
    return delivery

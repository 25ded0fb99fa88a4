"""The plan of an episode, made from its seed alone: who delivers what, and what goes wrong where."""

import random
from dataclasses import dataclass, field

FORMS = ("", "_async")
EVERYWHERE = ("run", "claim", "batch", "steps")
ASYNC = tuple(f"{shape}_async" for shape in EVERYWHERE)
SQL = ("transaction", "claim_transaction", "step_transaction")


def _both(*shapes: str) -> tuple[str, ...]:
    return tuple(f"{shape}{form}" for shape in shapes for form in FORMS)


_SERVED = (*EVERYWHERE, *ASYNC, *_both(*SQL))
SHAPES = dict.fromkeys(("redis", "dynamodb"), (*EVERYWHERE, *ASYNC)) | dict.fromkeys(("postgresql", "mysql"), _SERVED)
SHAPES["sqlite"] = (*EVERYWHERE, *ASYNC, *SQL)
STORES = ("sqlite", "sqlite", "dynamodb", "postgresql", "mysql", "redis")  # as often as they are drawn
MANY = {*_both("batch")}
IN_SQL = {*_both(*SQL)}
# MySQL: a new connection takes four requests, each of which can be lost
LEASES = {"redis": 1.0, "sqlite": 0.6, "dynamodb": 3.0, "postgresql": 1.0, "mysql": 2.0}
# How many points a delivery has before its handler and after it, measured, and a little more.
_SERVER = {"run": (245, 250), "many": (1010, 1000), "steps": (245, 1650)}
_SERVER |= {"transaction": (295, 160), "claim_transaction": (235, 810), "step_transaction": (235, 1450)}
_SQLITE = {"run": (70, 34), "many": (470, 190), "steps": (70, 560)}
_SQLITE |= {"transaction": (80, 125), "claim_transaction": (80, 125), "step_transaction": (80, 250)}
POINTS = {"sqlite": _SQLITE, **dict.fromkeys(("redis", "postgresql", "mysql"), _SERVER)}
POINTS["dynamodb"] = {shape: (before * 3 // 4, after * 2 // 3) for shape, (before, after) in _SERVER.items()}

RAISES = ("soft", "soft", "hard", "sigint")
IN_HANDLER = (*RAISES, "kill", "pause", "fails")
IN_CALL = (*RAISES, *RAISES, "kill", "pause")
IN_SETTLING = (*RAISES, *RAISES, *RAISES, "kill", "pause")


@dataclass
class Delivery:
    keys: list[str]
    # (phase "call" or "settle", number of the point, kind)
    strikes: list[tuple[str, int, str]] = field(default_factory=list)
    steps: dict[str, str] = field(default_factory=dict)  # what happens in the handler "before" and "after" its effect
    naps: tuple[float, float] = (0.0, 0.0)  # seconds that the handler takes before and after its effect
    timer: tuple[str, float] | None = None  # a kind and after how many seconds it strikes, wherever onceward is then


@dataclass
class Worker:
    deliveries: list[Delivery]
    start: float = 0.0
    skew: int = 0  # how many hours its wall clock is off
    signals: list[tuple[float, str]] = field(default_factory=list)  # (seconds after its start, its name)


@dataclass
class Plan:
    seed: int
    store: str
    shape: str
    workers: list[Worker]
    loss: float = 0.0  # the share of requests that something happens to on the wire
    outage: tuple[float, float] | None = None  # in seconds after the start
    dates: float = 0.0  # by how many seconds the servers' clocks differ
    pauses: tuple[float, ...] = (1.0,)  # seconds that the stops last, in turn

    @property
    def lease(self) -> float:
        return LEASES[self.store]

    @property
    def resolution(self) -> float:
        return 1.0 if self.store == "dynamodb" else 0.01

    @property
    def keys(self) -> list[str]:
        return sorted({key for worker in self.workers for delivery in worker.deliveries for key in delivery.keys})

    def __str__(self) -> str:
        many = f"{len(self.workers)} workers" if len(self.workers) > 1 else "1 worker"
        return f"seed {self.seed}: {self.shape} on {self.store}, {many}, loss {self.loss:g}"


def plan(seed: int, stores: tuple[str, ...] = STORES, shape: str | None = None) -> Plan:
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
    return made


def _alone(chance: random.Random, made: Plan) -> list[Delivery]:
    """Return the deliveries of a worker that has the keys to itself, so that it can be replayed to the letter."""
    deliveries = []
    for number in range(8 if made.store == "sqlite" else 5):
        keys = [f"k{number}{c}" for c in "abc"] if made.shape in MANY else [f"k{number}"]
        deliveries += [_delivery(chance, made, keys), Delivery(keys)]
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


def _delivery(chance: random.Random, made: Plan, keys: list[str]) -> Delivery:
    delivery = Delivery(list(keys))
    lease = made.lease
    longest = lease * chance.choice((0.02, 0.02, 0.1, 0.6))
    delivery.naps = (chance.random() * longest, chance.random() * longest)
    is_async = made.shape.endswith("async")
    where = chance.random()
    if where < 0.2:
        delivery.steps[chance.choice(("before", "after"))] = chance.choice(IN_HANDLER)
        if made.shape in IN_SQL and chance.random() < 0.7 and made.store != "mysql":  # it defers no constraint
            delivery.steps = {"before": "commit-fails"}
    elif where < 0.75:
        phase = chance.choice(("call", "settle", "settle"))
        shape = "many" if made.shape in MANY else made.shape.removesuffix("_async")
        points = POINTS[made.store]["run" if shape == "claim" else shape]
        first = 1 + int(chance.random() * points[phase == "settle"])
        kind = chance.choice(IN_CALL if phase == "call" else IN_SETTLING)
        if is_async and kind in RAISES and chance.random() < 0.5:
            kind = "cancel"
        delivery.strikes.append((phase, first, kind))
        if kind in RAISES and chance.random() < 0.3:  # and another right behind it
            delivery.strikes.append((phase, first + 1 + int(chance.random() * 25), chance.choice(RAISES)))
    elif where < 0.9:
        how = chance.choice(("timer", "async"))
        after = chance.random() ** 2 * longest * 3 + chance.random() * 0.003
        delivery.timer = f"{how}-{chance.choice(RAISES)}", after
    return delivery

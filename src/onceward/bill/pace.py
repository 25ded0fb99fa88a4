"""Times a ledger where it is: claims, completions, duplicates and batches, one after the other, at a limited rate."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Final, NamedTuple, TypeVar

from onceward.claim.claim import Claim
from onceward.core.clock import Clock
from onceward.core.drivers import drive
from onceward.errors import OncewardError, StoreError
from onceward.keys.ledger_keys import ledger_key
from onceward.observe.events import Happening, StoreRequest
from onceward.once import Once
from onceward.stores.capabilities import OBSERVE
from onceward.stores.contract import Store

T = TypeVar("T")

NAMESPACE: Final = "onceward-bench"
BATCH: Final = 10
RETENTION: Final = 3600.0  # seconds: if this process is killed, its records expire by themselves
_RESULT: Final = "x" * 98
_CLEANING: Final = 4  # deletes are made so much faster than the rate
_SHARES: Final = {"first call": 0.5, "duplicate": 0.25, "batch": 0.25}  # of the time
# Requests of one, in docs/reference: dynamodb.md, "What is sent", and postgres.md, "What a request costs".
DOCUMENTED: Final = {"claim": 1.0, "complete": 1.0, "duplicate": 1.0, "batch": 2.0}
OWN: Final = 0.001  # seconds of a call outside of its requests; the README's machine takes a tenth of it


class Timed(NamedTuple):
    """How long one operation takes.

    Attributes:
        name: claim, complete, duplicate or batch.
        times: how often it was made.
        requests: requests of one, the median. A batch on a slow machine records some ends before the others, with one more.
        seconds: of one, at the 50th, 90th and 99th percentile, and at most.
        own: seconds outside of requests, the median.
    """

    name: str
    times: int
    requests: float
    seconds: tuple[float, float, float, float]
    own: float


class Pace:
    """One run. Its keys begin with ``prefix``, which no other run has, and :meth:`clean` deletes them.

    Args:
        once: the ledger. It must be there.
        seconds: how long to measure.
        rate: keys a second at most.
        clock: tells the time, for the rate.
        sleep: waits some seconds.
    """

    def __init__(
        self,
        once: Once,
        seconds: float,
        rate: float,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.store: Store = once.store
        self.prefix = f"{NAMESPACE}-{secrets.token_hex(4)}"
        self.errors: Counter[str] = Counter()
        self.left: list[str] = []
        self._once = once.using(name=self.prefix, retention=RETENTION)
        self._seconds, self._rate, self._sleep = seconds, rate, sleep
        self._clock = clock
        self._keys: list[str] = []
        self._due = 0.0
        self._requests, self._waited = 0, 0.0
        self._samples: dict[str, list[tuple[float, float, int]]] = {}  # seconds, those of requests, requests
        OBSERVE.needed(self.store)(self._seen)

    @property
    def records(self) -> int:
        """How many records a run writes at most."""
        return round(self._seconds * self._rate * (_SHARES["first call"] + _SHARES["batch"])) + BATCH

    def run(self) -> list[Timed]:
        """Measure. An error of the store is counted, and the run goes on."""
        drive(self.store.load(f"{self.prefix}:warm-up"), self.store)  # opens the connection
        self._due = self._clock()
        done = []
        for _ in self._until(_SHARES["first call"]):
            key = self._new()
            claim = self._timing("claim", partial(self._once.acquire, key))
            if claim is not None and self._timing("complete", partial(_completed, claim)):
                done.append(key)
        for number in self._until(_SHARES["duplicate"] if done else 0):
            key = done[number % len(done)]
            self._timing("duplicate", partial(self._once.run, key, _unwanted))
        batch = self._once.batch(_handled, key=_itself)
        for _ in self._until(_SHARES["batch"], BATCH):
            keys = [self._new() for _ in range(BATCH)]
            for outcome in self._timing("batch", partial(batch.run, keys)) or ():
                if isinstance(outcome.error, OncewardError):
                    self.errors[str(outcome.error)] += 1
        return [_timed(name, samples) for name, samples in self._samples.items() if samples]

    def clean(self) -> int:
        """Delete the records of this run, and return how many. ``left`` has the keys that could not be deleted."""
        gone, pending, self._keys = 0, self._keys, []
        for key in pending:
            self._wait(1 / _CLEANING)
            whole = ledger_key(self.prefix, key)
            try:
                held = drive(self.store.load(whole), self.store).record
                if held is None:
                    continue  # its claim has failed
                if drive(self.store.delete(held), self.store).won:
                    gone += 1
                    continue
            except StoreError:
                pass
            self.left.append(whole)
        return gone

    def _until(self, share: float, keys: int = 1) -> Iterator[int]:
        """Count up, at the rate, until that share of the time is over."""
        for number in range(round(self._seconds * share * self._rate / keys)):
            self._wait(keys)
            yield number

    def _wait(self, keys: float) -> None:
        now = self._clock()
        self._due = max(self._due + keys / self._rate, now - 1)
        if self._due > now:
            self._sleep(self._due - now)

    def _new(self) -> str:
        self._keys.append(f"key-{len(self._keys):06}")
        return self._keys[-1]

    def _timing(self, name: str, call: Callable[[], T]) -> T | None:
        """Return what the call returns. None: the store has failed it."""
        self._requests, self._waited = 0, 0.0
        began = time.perf_counter()
        try:
            made = call()
        except OncewardError as error:
            self.errors[str(error)] += 1
            return None
        took = time.perf_counter() - began
        self._samples.setdefault(name, []).append((took, self._waited, self._requests))
        return made

    def _seen(self, event: Happening) -> None:
        if isinstance(event, StoreRequest):
            self._requests += 1
            self._waited += event.seconds


def _timed(name: str, samples: list[tuple[float, float, int]]) -> Timed:
    seconds = sorted(took for took, _, _ in samples)
    p50, p90, p99 = (seconds[min(len(seconds) - 1, int(len(seconds) * share))] for share in (0.5, 0.9, 0.99))
    requests = median(count for _, _, count in samples)
    own = median(max(0.0, took - waited) for took, waited, _ in samples)
    return Timed(name, len(samples), requests, (p50, p90, p99, seconds[-1]), own)


def verdicts(timed: list[Timed]) -> list[tuple[bool, str]]:
    """Compare with the figures of the docs: for each line whether it is as there, and what to look at if it is not."""
    told = []
    for one in timed:
        wanted = DOCUMENTED[one.name]
        met = one.requests <= wanted * 1.05
        says = f"{one.name}: {one.requests:.2f} requests; the docs say {wanted:g}"
        told.append((met, says if met else f"{says}. Retries, probe=read and a pooler add some"))
    own = max((one.own for one in timed if one.name != "batch"), default=0.0)
    says = f"a call takes {own * 1e6:.0f} µs outside of its requests; at most {OWN * 1e6:.0f} µs is usual"
    met = own <= OWN
    told.append((met, says if met else f"{says}. This process has too little CPU"))
    return told


def _completed(claim: Claim) -> bool:
    claim.complete(_RESULT)
    return True


def _unwanted() -> None:
    raise AssertionError("a duplicate ran")


def _handled(_: str) -> str:
    return _RESULT


def _itself(key: str) -> str:
    return key

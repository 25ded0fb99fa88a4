"""Records what a store is asked and what it answers. An operation without an answer may have taken effect, or may do so later. And planted defects."""

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from time import CLOCK_BOOTTIME, clock_gettime_ns

from onceward.core import conditions, protocol
from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered
from onceward.stores.contract import Store
from torture.facts import Journal

_CHOSEN = ("status", "attempts", "fingerprint", "result", "error", "worker", "needs", "steps", "unsent", "origin", "input", "history", "trace")  # fmt: skip


class RecordedStore:
    """A store that writes down each verb. Requests between the verbs of the store itself are its own business."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store, self._journal = store, journal
        self._numbers = itertools.count()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def insert(self, write: Write) -> Steps[Reply]:
        return self._one(self._store.insert(write), "insert", write.key, write)

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        return self._one(self._store.swap(write, seen), "swap", write.key, write, seen)

    def load(self, key: str) -> Steps[Reply]:
        return self._one(self._store.load(key), "load", key)

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        asked = [self._invoke("insert", write.key, write) for write in writes]
        return self._many(self._store.insert_many(writes), asked)

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        asked = [self._invoke("swap", write.key, write, seen) for write, seen in pairs]
        return self._many(self._store.swap_many(pairs), asked)

    def whole(self, kind: str, key: str, began: int, **more: object) -> None:
        """Write down an operation that has ended: of a caller, or of a handler."""
        self._journal("whole", kind=kind, key=key, began=began, **more | {"t": instant()})

    def _one(
        self, verb: Steps[Reply], kind: str, key: str, write: Write | None = None, seen: Record | None = None
    ) -> Steps[Reply]:
        number = self._invoke(kind, key, write, seen)
        reply = yield from verb
        self._answer(number, reply)
        return reply

    def _many(self, verb: Steps[list[Answered]], asked: list[str]) -> Steps[list[Answered]]:
        answers = yield from verb
        for number, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Reply):
                self._answer(number, answer)
        return answers

    def _invoke(self, kind: str, key: str, write: Write | None = None, seen: Record | None = None) -> str:
        number = f"{os.getpid()}-{next(self._numbers)}"
        more: dict[str, object] = {}
        if write is not None:
            more["write"] = _told(write) | {"lease": write.lease}
        if seen is not None:
            more["seen"] = {"owner": seen.owner, "fence": seen.fence, "beat": seen.beat}
        self._journal("invoke", op=number, kind=kind, key=key, **more, t=instant())
        return number

    def _answer(self, number: str, reply: Reply) -> None:
        record = reply.record
        told = None if record is None else _told(record) | {"whole": _digest(list(record))}
        self._journal("return", op=number, won=reply.won, record=told, t=instant())


def instant() -> int:
    """Return nanoseconds on the clock that all processes of the machine share and nobody can set."""
    return clock_gettime_ns(CLOCK_BOOTTIME)


def _told(one: Write | Record) -> dict[str, object]:
    data = _digest([getattr(one, field) for field in _CHOSEN])
    return {"owner": one.owner, "fence": one.fence, "beat": one.beat, "status": one.status, "result": one.result, "data": data}  # fmt: skip


def _digest(values: list[object]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()


def _blind_swap(store: Store) -> None:
    """A swap does not compare the version."""
    swap = store.swap

    def blind(write: Write, seen: Record) -> Steps[Reply]:
        held = (yield from store.load(write.key)).record
        return (yield from swap(write, held or seen))

    store.swap = blind  # type: ignore[method-assign]


def _lost_write(store: Store) -> None:
    """Each twentieth swap is answered and not made."""
    swap, count = store.swap, 0

    def lost(write: Write, seen: Record) -> Steps[Reply]:
        nonlocal count
        count += 1
        if count % 20:
            return (yield from swap(write, seen))
        reply = yield from store.load(write.key)
        return Reply(True, write.at(reply.now), reply.now)

    store.swap = lost  # type: ignore[method-assign]


def _live_taken(_: Store) -> None:
    """A live lease is taken over."""
    is_taken = lambda rule: rule.verdict is protocol.Verdict.BUSY and conditions.lease_live in rule.conditions
    protocol.CHECKS = protocol.by_status(tuple(rule for rule in protocol.RULES if not is_taken(rule)))


def _again(_: Store) -> None:
    """A completed key runs again."""
    replays = lambda rule: rule.verdict is protocol.Verdict.REPLAY
    changed = tuple(rule._replace(verdict=protocol.Verdict.NEXT) if replays(rule) else rule for rule in protocol.RULES)
    protocol.CHECKS = protocol.by_status(changed)


PLANTS = {"blind-swap": _blind_swap, "lost-write": _lost_write, "live-taken": _live_taken, "again": _again}

"""Points every ``Once`` of this process at the ledgers of a test, and back.

The store objects stay the same, because guards, batches and adapters hold them. While a test is on the stage, a store has a
class of its own, whose verbs go to another store, and whose exchanges go through a :data:`Prompt`.
"""

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, NamedTuple, Self
from unittest import mock

from onceward.claim.factory import FACTORIES
from onceward.claim.guard import Guard
from onceward.claim.replays import Replays
from onceward.core import drivers
from onceward.core.drivers import Sleep, Steps, Transport, drive, drive_async
from onceward.core.record import Record
from onceward.outbox import sender
from onceward.stores.capabilities import OUTBOX, TRANSACTION, Session
from onceward.stores.contract import Store
from onceward.stores.ledger import Ledger
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from onceward.testing.mishaps import AT_EXCHANGE, IN_TRANSACTION, Ask, Mishap, tagged, tagging

_HERE: Final = {
    "outbox": "check_outbox",
    "transaction": "join",
}  # what a store can do on the stage, by functions of this file
_SHORT: Final = 0.001  # seconds for which a pause really lasts, so that other threads get on


class Killed(BaseException):
    """The worker is dead. Each further request of it to the ledger or a downstream raises this again."""


class Act(NamedTuple):
    """What steps of the test kit yield: something to call, or to await."""

    called: Callable[[], object]
    awaited: Callable[[], Awaitable[object]]


class Actors:
    """Carries out acts for a driver."""

    def exchange(self, act: Any) -> object:
        try:
            return act.called()
        except StopIteration as error:  # of a mock that has no more answers; it would end the driver's steps
            raise RuntimeError(f"the call raised {error!r}") from error

    async def exchange_async(self, act: Any) -> object:
        return await act.awaited()


ACTORS: Final = Actors()


# Yields the acts of one exchange, such as the one it is given, or does worse. The mishaps are what can happen to it.
Prompt = Callable[[Ask, Act, tuple[Mishap, ...]], Steps[object]]


def _passing(verb: str) -> Any:
    """Return a verb of a store: that of the store ``_behind()`` it."""
    return lambda self, *arguments: getattr(self._behind(), verb)(*arguments)


class StagedStore:
    """What a store is on the stage. It comes before the store's own class, so ``super()`` is the store as it was."""

    stage: "Stage"
    url: str

    @property
    def capabilities(self) -> Mapping[str, str]:
        return self.stage.capabilities(self)

    def _behind(self) -> Store:
        return self.stage.ledger(self)

    insert, insert_many, load = tagging("insert"), tagging("insert_many"), tagging("load")
    swap, swap_many = tagging("swap"), tagging("swap_many")

    def exchange(self, request: object) -> object:
        return drive(self.stage.acts(request, self._behind()), ACTORS)

    async def exchange_async(self, request: object) -> object:
        return await drive_async(self.stage.acts(request, self._behind()), ACTORS)

    def changed(self, _: str, seconds: float, __: float, /) -> Steps[None]:
        yield Sleep(seconds)  # nobody tells of changes here

    select, delete, purge = _passing("select"), _passing("delete"), _passing("purge")


def check_outbox(store: StagedStore) -> Steps[None]:
    """Check that the ledger can keep messages (:data:`onceward.stores.capabilities.OUTBOX`)."""
    return OUTBOX.require(store.stage.ledger(store))()


def join(store: StagedStore, connection: object) -> "StagedSession":
    """Return the session of a connection (:data:`onceward.stores.capabilities.TRANSACTION`)."""
    return StagedSession(TRANSACTION.require(store.stage.ledger(store))(connection), store.stage)


class StagedSession:
    """A caller's connection whose exchanges are prompted: those with the ledger, and the COMMIT."""

    def __init__(self, session: Session, stage: "Stage") -> None:
        self._session = session
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def commit(self) -> Steps[Record | None]:
        return tagged("commit", (), self._session.commit())

    def exchange(self, request: object) -> object:
        return drive(self._stage.acts(request, self._session, IN_TRANSACTION), ACTORS)

    async def exchange_async(self, request: object) -> object:
        return await drive_async(self._stage.acts(request, self._session, IN_TRANSACTION), ACTORS)


class Stage:
    """The ledgers of a test: a context manager.

    Args:
        clock: the clock of all guards and ledgers meanwhile. Nobody waits: a pause moves it.
        make: makes a ledger, from that clock.
    """

    def __init__(self, clock: ManualClock, make: Callable[[ManualClock], Store]) -> None:
        self.clock = clock
        self.prompt: Prompt | None = None
        self._make = make
        self._staged: list[tuple[Any, type, dict[str, object]]] = []
        self._ledgers: dict[object, Store] = {}
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        while _ACTIVE:  # its loop was left before its end
            _ACTIVE[0].close()
        _ACTIVE.append(self)

        def sleep(seconds: float) -> None:
            self.clock.advance(seconds)
            real_sleep(min(seconds, _SHORT))

        async def sleep_async(seconds: float) -> None:
            self.clock.advance(seconds)
            await real_sleep_async(min(seconds, _SHORT))

        real_sleep, real_sleep_async = drivers.sleep, drivers.sleep_async  # the one place where a driver waits

        def patch(where: object, name: str, new: object) -> None:
            self._patches.enter_context(mock.patch.object(where, name, new, create=True))

        patch(Guard, "clock", _StagedClock(self))
        patch(Replays, "recall", lambda *_: None)  # a worker that is killed forgets what it remembered
        patch(drivers, "sleep", sleep)
        patch(drivers, "sleep_async", sleep_async)
        patch(threading, "excepthook", _without(Killed, threading.excepthook))
        patch(sender, "send_soon", lambda *_, **__: None)  # messages stay in their records, where a test finds them
        self.set()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave everything as it was."""
        if self not in _ACTIVE:
            return
        _ACTIVE.remove(self)
        for store, kind, own in reversed(self._staged):
            for name in ("exchange", "exchange_async"):
                vars(store).pop(name, None)
            store.__class__ = kind
            vars(store).update(own)
        self._staged.clear()
        self._patches.close()
        self._drop()

    def set(self) -> None:
        """Bring every Once on the stage, also those that were made meanwhile, and empty the ledgers."""
        if self not in _ACTIVE:
            raise RuntimeError("another crash test began within this one: only one can run at a time")
        self._drop()
        for one in list(FACTORIES):
            self.stage(one.store)

    def acts(self, request: object, store: Transport, mishaps: tuple[Mishap, ...] = AT_EXCHANGE) -> Steps[object]:
        """Yield the acts of a request of a store or a session on the stage. What no verb has tagged is not prompted."""
        inner = request.request if isinstance(request, Ask) else request
        act = Act(partial(store.exchange, inner), partial(store.exchange_async, inner))
        if isinstance(request, Ask) and self.prompt is not None:
            return (yield from self.prompt(request, act, mishaps))
        return (yield act)

    def _drop(self) -> None:
        for ledger in self._ledgers.values():
            ledger.close()
        self._ledgers.clear()

    def stage(self, store: Any) -> None:
        """Bring one store on the stage."""
        if isinstance(store, StagedStore):
            return
        kind = type(store)
        own = {name: vars(store).pop(name) for name in ("exchange", "exchange_async") if name in vars(store)}
        staged = type(kind.__name__, (StagedStore, kind), {"stage": self, "__module__": kind.__module__})
        store.__class__ = staged
        self._staged.append((store, kind, own))

    def ledger(self, store: "StagedStore") -> Store:
        """Return the store that stands in for ``store``."""
        place = id(store) if store.url == MemoryStore.url else store.url
        ledger = self._ledgers.get(place)
        if ledger is None:
            ledger = self._ledgers[place] = self._make(self.clock)
        return ledger

    def capabilities(self, store: "StagedStore") -> Mapping[str, str]:
        """Return what ``store`` can do meanwhile."""
        can = self.ledger(store).capabilities
        return {name: f"{__name__}:{function}" for name, function in _HERE.items() if name in can}

    def records(self) -> Iterator[Record]:
        """Yield the records of all ledgers."""
        for ledger in self._ledgers.values():
            for record, _ in Ledger(ledger).records():
                yield record


def _without(kind: type[BaseException], hook: Callable[[Any], object]) -> Callable[[Any], None]:
    """Return what threads call that end by an exception, but not for one of this kind."""

    def hear(ended: Any) -> None:
        if not issubclass(ended.exc_type, kind):
            hook(ended)

    return hear


_ACTIVE: Final[list[Stage]] = []  # at most one


class _StagedClock:
    """The ``clock`` of each guard meanwhile. A guard asks for it first, so its store is on the stage, however new it is."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __get__(self, guard: Any, _: type) -> Any:
        self._stage.stage(guard.store)
        return self._stage.clock

    def __set__(self, guard: Any, clock: object) -> None:
        vars(guard)["clock"] = clock

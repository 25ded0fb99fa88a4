"""Locks that a signal handler or a fork may meet while their own thread holds them.

Python runs a signal handler in the main thread, between two steps of whatever runs there, perhaps a write to a ledger.
A plain lock would then wait for its own thread for ever. These are reentrant, and whoever needs the inside of one to
himself asks ``owns`` first. The same goes for what ``__del__`` does, which runs wherever an object dies.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from onceward.errors import StoreError

if TYPE_CHECKING:
    from threading import RLock  # a class to the type checker, and a function when it runs

_PATIENCE, _PAUSE = 0.05, 0.001  # seconds


def owns(lock: "RLock") -> Callable[[], bool]:
    """Return what tells whether this very thread holds the lock."""
    is_owned: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - as threading.Condition
    return is_owned


def reentered(where: str) -> StoreError:
    """Return the error of a call that interrupts its own thread in the middle of a write."""
    return StoreError(
        f"ledger {where}: this call came from a signal handler (or a __del__) that interrupted its own thread in the middle "
        "of a write to this ledger. Nothing was done. Let the handler set a flag, or start a thread that makes the call"
    )


def take(locks: "Sequence[RLock]") -> None:
    """Acquire all. It waits while it holds none, so those who hold one, and want another, cannot block each other."""
    while True:
        taken: list[RLock] = []
        try:
            for lock in locks:
                if not lock.acquire(timeout=_PATIENCE if taken else -1):
                    break
                taken.append(lock)
            else:
                return
        except BaseException:
            give(taken)
            raise
        give(taken)
        time.sleep(_PAUSE)


def give(locks: "Sequence[RLock]") -> None:
    """Release all."""
    for lock in reversed(locks):
        lock.release()


# --- forks --------------------------------------------------------------------------------------------------------


class Forks(Protocol):
    """What a store does around a fork. Its ``locks`` are held from before to after, so that nobody is inside one."""

    @property
    def locks(self) -> "Sequence[RLock]":
        """All that a fork must not leave held."""

    def before_fork(self, *, inside: bool) -> None:
        """Prepare; all locks are held. ``inside`` one of them, this very thread was interrupted, and will go on."""

    def after_fork_in_child(self) -> None:
        """Begin anew as the child; all locks are held."""


_STORES: dict[int, "weakref.ref[Forks]"] = {}


class Forking:
    """A fork of this thread that is under way."""

    def __init__(self) -> None:
        self.stores = [store for weak in list(_STORES.values()) if (store := weak()) is not None]
        locks = [lock for store in self.stores for lock in store.locks]
        self.locks = [lock for lock in locks if not owns(lock)()]  # those that are to be taken, and given back
        self.inside = {id(store) for store in self.stores if any(owns(lock)() for lock in store.locks)}
        self.ready = False

    def give(self) -> None:
        """Release what was taken, also if an interrupt came before that was noted anywhere."""
        give([lock for lock in self.locks if owns(lock)()])


_FORKING: dict[int, Forking] = {}  # by thread


def watch_forks(store: Forks) -> None:
    """Call the store around every fork of this process, for as long as it lives."""
    _STORES[id(store)] = weakref.ref(store)
    weakref.finalize(store, _STORES.pop, id(store), None).atexit = False


def _before() -> None:
    me = threading.get_ident()
    forking = _FORKING.get(me)
    if forking is None:
        forking = _FORKING[me] = Forking()
    if forking.ready:
        return
    forking.give()  # what an interrupted try has taken
    take(forking.locks)
    for store in forking.stores:
        store.before_fork(inside=id(store) in forking.inside)
    forking.ready = True


def _after() -> None:
    forking = _FORKING.get(threading.get_ident())
    if forking is not None:
        forking.give()
        del _FORKING[threading.get_ident()]


def _after_in_child() -> None:
    forking = _FORKING.get(threading.get_ident())
    for store in forking.stores if forking is not None else ():
        store.after_fork_in_child()
    _after()


if hasattr(os, "register_at_fork"):
    for _ in range(
        3
    ):  # Python drops the interrupt that ends a hook, so two more go on; each is nothing once all is done
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)

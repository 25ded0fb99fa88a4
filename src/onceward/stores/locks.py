"""Locks that are safe when a signal handler or a fork interrupts the thread that holds them.

Python runs a signal handler in the main thread, perhaps in the middle of a write to a ledger. There a plain lock would wait
for its own thread for ever, so these are reentrant. Code that must not be reentered asks ``owns`` first. ``__del__``, which
runs wherever an object dies, has the same problem.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from onceward.errors import StoreError

if TYPE_CHECKING:
    from threading import RLock  # a class to the type checker, a function at run time

_PATIENCE, _PAUSE = 0.05, 0.001  # seconds


def owns(lock: "RLock") -> Callable[[], bool]:
    """Return a function that returns whether this thread holds the lock."""
    is_owned: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - as threading.Condition
    return is_owned


def reentered(where: str) -> StoreError:
    """Return the error for a call that interrupted its own thread in the middle of a write."""
    return StoreError(
        f"ledger {where}: this call came from a signal handler (or a __del__) that interrupted its own thread in the middle "
        "of a write to this ledger. Nothing was done. Let the handler set a flag, or start a thread that makes the call"
    )


Holds = list[tuple["RLock", int]]


def holds(locks: "Sequence[RLock]") -> Holds:
    """Return how often this thread holds each lock. :func:`give` releases what is taken after that.

    Needed because an interrupt may come after a lock is taken and before the code has noted it.
    """
    return [(lock, _count(lock)) for lock in locks]


def take(locks: "Sequence[RLock]") -> None:
    """Acquire all locks. Waits only while it holds none of them, so two threads cannot deadlock."""
    before = holds(locks)
    while True:
        try:
            if all(lock.acquire(timeout=_PATIENCE if number else -1) for number, lock in enumerate(locks)):
                return
        except BaseException:
            give(before)
            raise
        give(before)
        time.sleep(_PAUSE)


def give(before: Holds, patience: int = 2) -> None:
    """Release what was taken since :func:`holds`."""
    try:
        for lock, count in reversed(before):
            while _count(lock) > count:
                lock.release()
    except BaseException:
        if patience:
            give(before, patience - 1)
        raise


def _count(lock: "RLock") -> int:
    # Only the repr shows it in every version of Python.
    return int(repr(lock).rpartition("count=")[2].split()[0]) if owns(lock)() else 0


# --- forks --------------------------------------------------------------------------------------------------------


class Forks(Protocol):
    """What a store does around a fork. Its ``locks`` are held throughout, so no thread forks inside one."""

    @property
    def locks(self) -> "Sequence[RLock]":
        """All locks that must not stay held in the child."""

    def before_fork(self, *, inside: bool) -> None:
        """Prepare. All locks are held. ``inside``: this thread held one when it was interrupted, and will go on."""

    def after_fork_in_child(self) -> None:
        """Start again as the child. All locks are held."""


_STORES: dict[int, "weakref.ref[Forks]"] = {}
_FORKING: "dict[int, list[_Fork]]" = {}  # by thread; a signal handler may fork while another fork waits


def watch_forks(store: Forks) -> None:
    """Call the store around every fork of this process, as long as the store lives."""
    _STORES[id(store)] = weakref.ref(store)
    weakref.finalize(store, _STORES.pop, id(store), None).atexit = False


class _Fork:
    """A running fork, and what its thread held before."""

    ready = confirmed = False

    def __init__(self) -> None:
        self.stores = [store for weak in list(_STORES.values()) if (store := weak()) is not None]
        self.before = holds([lock for store in self.stores for lock in store.locks])

    def prepare(self) -> None:
        take([lock for lock, _ in self.before])
        inside = {id(lock) for lock, count in self.before if count}
        for store in self.stores:
            store.before_fork(inside=any(id(lock) in inside for lock in store.locks))
        self.ready = True


# If a hook raises, as by a time limit, Python prints the error and goes on. So a second hook finishes each hook's work.


def _before() -> None:
    fork = _Fork()
    _FORKING.setdefault(threading.get_ident(), []).append(fork)
    fork.prepare()


def _before_again() -> None:
    forks = _FORKING.setdefault(threading.get_ident(), [])
    if not forks or forks[-1].confirmed:
        forks.append(_Fork())
    if not forks[-1].ready:
        forks[-1].prepare()
    forks[-1].confirmed = True


def _after() -> None:
    for fork in _FORKING.get(threading.get_ident(), [])[-1:]:
        give(fork.before)


def _after_again() -> None:
    _after()
    forks = _FORKING.get(threading.get_ident(), [])[:-1]
    if forks:
        _FORKING[threading.get_ident()] = forks
    else:
        _FORKING.pop(threading.get_ident(), None)


def _in_child() -> None:
    for fork in _FORKING.get(threading.get_ident(), [])[-1:]:
        for store in fork.stores:
            store.after_fork_in_child()
    _after()


def _in_child_again() -> None:
    _in_child()
    _after_again()


if hasattr(os, "register_at_fork"):  # "before" hooks run in reverse order
    os.register_at_fork(before=_before_again, after_in_parent=_after, after_in_child=_in_child)
    os.register_at_fork(before=_before, after_in_parent=_after_again, after_in_child=_in_child_again)

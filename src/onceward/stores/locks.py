"""What a store in this process needs when a signal handler interrupts its own thread, and when the process forks.

Python runs a signal handler in the main thread, perhaps in the middle of a write to a ledger. There a plain lock would wait
for its own thread for ever, so stores take reentrant ones. Code that must not be reentered asks ``owns`` first. ``__del__``,
which runs wherever an object dies, has the same problem.
"""

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from onceward.errors import StoreError

if TYPE_CHECKING:
    from threading import RLock  # a class to the type checker, a function at run time


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


class Forked:
    """What a store does around a fork of its process."""

    def before_fork(self) -> None:
        """Prepare."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Start again as the child."""


_STORES: dict[int, "weakref.ref[Forked]"] = {}


def watch_forks(store: Forked) -> None:
    """Call the store around every fork of this process, as long as the store lives."""
    _STORES[id(store)] = weakref.ref(store)
    weakref.finalize(store, _STORES.pop, id(store), None).atexit = False


def _around(step: str) -> Callable[[], None]:
    def call() -> None:
        for weak in list(_STORES.values()):
            if (store := weak()) is not None:
                getattr(store, step)()

    return call


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_around("before_fork"),
        after_in_parent=_around("after_fork_in_parent"),
        after_in_child=_around("after_fork_in_child"),
    )

"""Some connections of a ledger that was opened by its URL, and who waits for them.

Each request takes a connection for itself, the last one used first. Those who wait for one get it in their order.
"""

import contextlib
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from onceward.stores.sql.line import Turns
from onceward.stores.sql.refusals import Broken, SqlRefusal


class PooledLink(ABC):
    """One connection. Dropping it closes it, except in a child that inherited it by a fork."""

    def __init__(self, home: "Pool[Any]") -> None:
        self.home = home
        self.process = os.getpid()
        home.all.add(self)  # it counts from before it is opened

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether it is still open, as far as this end knows."""

    @abstractmethod
    def close(self, *, friendly: bool = False) -> None:
        """Close it, with a word to the server if it is ``friendly``. It counts no longer."""

    def __del__(self) -> None:
        self.close()


L = TypeVar("L", bound=PooledLink)


class Pool(Generic[L]):
    """The connections of all who can share them.

    Args:
        make: makes one of this pool, which is not open yet.
        most: how many there are at a time.
        left: codes of errors by which a server says that it should be left.
    """

    def __init__(self, make: "Callable[[Pool[L]], L]", most: int, left: AbstractSet[str] = frozenset()) -> None:
        self._make, self._most, self._left = make, most, left
        self.idle: deque[L] = deque()
        self.all: WeakSet[L] = WeakSet()
        self.line = Turns(lambda: bool(self.idle) or len(self.all) < most)

    def free(self) -> L | None:
        """Return an idle connection that is still open, or one to open; None if all are in use."""
        while self.idle:
            try:
                link = self.idle.pop()
            except IndexError:  # another thread was faster
                break
            if link.is_alive:
                return link
            link.close()
        if len(self.all) >= self._most:
            return None
        link = self._make(self)
        if len(self.all) > self._most:  # another thread did the same
            link.close()
            return None
        return link

    def found(self, link: L | None, seconds: float) -> L:
        """Return what was found in ``seconds``; raises Broken for None."""
        if link is None:
            raise Broken(
                f"all {self._most} connections are in use for {seconds:g} s: raise pool=, or lower the concurrency"
            )
        return link

    def give_back(self, link: L) -> None:
        """Take back a connection that is ready for the next statement."""
        self.idle.append(link)
        if self.line:
            self.line.wake()

    def end(self, link: L, error: BaseException) -> None:
        """Take back a connection after an error."""
        if isinstance(error, SqlRefusal) and error.state not in self._left:
            self.give_back(link)
            return
        link.close()
        if isinstance(error, Broken | SqlRefusal):  # the others may be as dead, and each would take as long to find out
            self.clear()
        self.line.wake()

    def clear(self, *, friendly: bool = False) -> None:
        """Close the idle connections."""
        while self.idle:
            with contextlib.suppress(IndexError):
                self.idle.pop().close(friendly=friendly)

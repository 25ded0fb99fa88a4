"""How the waiters of a process look at a busy key: one asks the store, and all use its reply.

Each waiter drives its own generator, with its own deadline, in its own thread or task. They share a :class:`Watch`: the
first one that wakes asks the store. If that waiter is cancelled, its turn ends after ``TURN`` seconds. Waiters with a custom
clock share nothing, because somebody moves that clock by hand.
"""

from typing import Final
from weakref import WeakValueDictionary

from onceward.core.clock import Clock, boottime
from onceward.core.drivers import Sleep, Steps
from onceward.core.record import Reply
from onceward.core.register import Register

FIRST: Final = 0.001  # seconds between two looks, doubled each time up to the store's `poll`
TURN: Final = 1.0  # seconds before another waiter can ask: the one whose turn it is may be gone
_NAP: Final = 0.005  # least seconds between two checks for another waiter's reply


class Watch:
    """What the waiters for one key of ``store`` share; ``clock`` is theirs."""

    def __init__(self, store: Register, key: str, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._clock = clock
        self._pause = FIRST
        self._due = clock() + FIRST
        self._turns = 0  # how often a waiter has asked
        self._asking = 0.0  # the end of the current turn; 0 when nobody asks
        self._reply: Reply | None = None
        self._sent = 0.0  # when that reply was requested

    def look(self, owner: str, since: float, end: float, last: Reply) -> Steps[Reply]:
        """Wait for the next look, and return its reply, whichever waiter asked.

        Args:
            owner: the waiter's; it ignores a shared reply with its own record, because others asked at another time.
            since: when the wait began; replies to earlier requests are ignored.
            end: when the waiter gives up.
            last: the reply to return then.
        """
        clock = self._clock
        while (remaining := end - clock()) > 0:
            turn, asking = self._turns, clock() < self._asking
            if asking:
                yield Sleep(min(max(_NAP, self._pause / 4), remaining))
            else:
                yield from self._store.changed(self._key, min(max(0.0, self._due - clock()), remaining), remaining)
            reply = self._reply
            if reply is not None and self._sent > since and (reply.record is None or reply.record.owner != owner):
                return reply
            if turn == self._turns and (not asking or clock() >= self._asking):
                return (yield from self._ask())
        return last

    def _ask(self) -> Steps[Reply]:
        sent = self._clock()
        self._turns += 1
        self._asking = sent + TURN
        try:
            reply = yield from self._store.load(self._key)
        finally:
            self._pause = min(self._pause * 2, self._store.poll)
            self._due = self._clock() + self._pause
            self._asking = 0.0
        if sent > self._sent:
            self._reply = reply
            self._sent = sent
        return reply


_WATCHES: Final[WeakValueDictionary[tuple[int, str], Watch]] = WeakValueDictionary()


def watch(store: Register, key: str, clock: Clock) -> Watch:
    """Return what the waiters for this key share, while there are any."""
    if clock is not boottime:
        return Watch(store, key, clock)
    place = (id(store), key)  # a watch keeps its store alive, so the id stays valid
    shared = _WATCHES.get(place)
    if shared is None:
        shared = _WATCHES[place] = Watch(store, key, clock)
    return shared

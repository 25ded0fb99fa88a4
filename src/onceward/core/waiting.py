"""How the waiters of a process look at a busy key: one of them asks the store, and all of them use the reply.

Each waiter drives a generator of its own, with its own deadline, in whatever thread or task it is. What they share is a
:class:`Watch`. The first waiter that wakes asks the store. A waiter that is cancelled takes nothing away from the others: a
turn to ask that was not used ends after ``TURN`` seconds. Waiters with a clock passed in share nothing, for somebody moves
that clock by hand.
"""

from typing import Final
from weakref import WeakValueDictionary

from onceward.core.clock import Clock, boottime
from onceward.core.drivers import Sleep, Steps
from onceward.core.record import Reply
from onceward.core.register import Register

FIRST: Final = 0.001  # seconds between two looks, doubled each time up to what the store says
TURN: Final = 1.0  # seconds after which another waiter may ask: the one whose turn it was may be gone
_NAP: Final = 0.005  # seconds, at least, between two looks at whether somebody else's reply has come


class Watch:
    """What the waiters for one key know together.

    Args:
        store: where the key is.
        key: the key.
        clock: the waiters' clock.
    """

    def __init__(self, store: Register, key: str, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._clock = clock
        self._pause = FIRST
        self._due = clock() + FIRST
        self._turns = 0  # how often a waiter has asked
        self._asking = 0.0  # until when somebody asks; 0 when nobody does
        self._reply: Reply | None = None
        self._sent = 0.0  # when that reply was asked for

    def look(self, owner: str, since: float, end: float, last: Reply) -> Steps[Reply]:
        """Wait until it is time to look again, and return the reply of whoever has looked.

        Args:
            owner: the waiter's; a record of its own is not taken from others, for they asked at another time.
            since: when the wait began; a reply that was asked for before is no news.
            end: when the waiter gives up.
            last: what it gets then.
        """
        clock = self._clock
        while (left := end - clock()) > 0:
            turn, asking = self._turns, clock() < self._asking
            wait = max(_NAP, self._pause / 4) if asking else max(0.0, self._due - clock())
            yield Sleep(min(wait, left))
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
    """Return what the waiters for this key share, for as long as there are any."""
    if clock is not boottime:
        return Watch(store, key, clock)
    place = (id(store), key)  # a watch keeps its store alive, and with that the id
    found = _WATCHES.get(place)
    if found is None:
        found = _WATCHES[place] = Watch(store, key, clock)
    return found

"""Sends messages behind the answers, in a few daemon threads of this process: started on demand, ended when idle.

Each target has a lane of records whose next message goes there, and each store one of records to write about. One thread at a
time works in a lane, so a target or a store that hangs delays no other. Whoever finds messages hands them over: a claim that was
completed, a duplicate, a relay. A record that is given up stays in the ledger, where a relay finds it when it is due.
"""

import atexit
import os
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from onceward.core.clock import boottime
from onceward.core.policy import Seal
from onceward.core.record import Record
from onceward.observe.logs import logger
from onceward.observe.observers import Observers
from onceward.outbox.lanes import Lane, StoreLane, TargetLane
from onceward.outbox.sending import SendingRecord
from onceward.results.outcomes import describe
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from concurrent.futures import Future

IDLE: Final = 10.0  # seconds without work after which a thread ends
THREADS: Final = 8  # at most: so many targets can hang before others wait
MOST: Final = 10_000  # records in memory, and as many of targets that have failed; more are left to a relay
STUCK: Final = 500  # those of one target that has failed
AT_EXIT: Final = 5.0  # seconds for which a process that ends still sends


class Sender:
    """The lanes of this process, and the threads that work in them.

    Attributes:
        refused: how many messages their targets have refused for good.
        gone: how many messages their targets have taken, or refused for good.
    """

    def __init__(self) -> None:
        # Callers take the lock itself: an interrupt at a condition's entry would leave it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inbox: deque[SendingRecord] = deque()
        self._lanes: dict[object, Lane] = {}
        self._records: dict[tuple[int, str, str, int], SendingRecord] = {}
        self._threads: set[threading.Thread] = set()
        self._waiting = 0  # threads without work
        self.refused = 0
        self.gone = 0
        self._drains_at_end = False

    def __len__(self) -> int:
        """Return how many records this process has to send from."""
        return len(self._records) + len(self._inbox)

    @property
    def backlog(self) -> int:
        """How many records wait for nothing but their turn. Those of a target that has failed do not count."""
        with self._lock:
            return len(self._inbox) + sum(lane.backlog for lane in self._lanes.values())

    @property
    def is_busy(self) -> bool:
        """Whether a request to a target or a store is under way."""
        with self._lock:
            return any(lane.busy for lane in self._lanes.values())

    def hand_over(self, outgoing: SendingRecord) -> bool:
        """Send the messages of a record soon. Return False if there are too many records already. It does not wait."""
        count, entry = len(self), outgoing.head
        if count >= STUCK and (
            count >= 2 * MOST or count - self._stuck() >= MOST or (entry and self.is_full(entry.to))
        ):
            return False  # no target that has failed takes the room of others
        self._inbox.append(outgoing)
        with self._lock:
            self._staff()
        return True

    def _stuck(self) -> int:
        with self._lock:
            return sum(lane.stuck or 0 for lane in self._lanes.values())

    def is_full(self, target: str) -> bool:
        """Return whether no more records are kept for a target, because it has failed."""
        lane = self._lanes.get(target)
        stuck = None if lane is None else lane.stuck
        return stuck is not None and (stuck >= STUCK or self._stuck() >= MOST)

    def pause_of(self, target: str) -> float:
        """Return for how many seconds nothing is sent to a target, because it has failed; 0 if it works."""
        lane = self._lanes.get(target)
        return 0.0 if lane is None else max(0.0, lane.resumes_at - boottime())

    def drain(self, seconds: float) -> int:
        """Wait until nothing is left that can be sent now, at most so many seconds. Return how many records are left."""
        until = boottime() + seconds
        with self._lock:
            self._sort()
            for one in self._lanes.values():
                one.hurry()
        while (remaining := until - boottime()) > 0:
            with self._lock:
                self._sort()
                lane = self._ready()
                if lane is None and not self.is_busy:
                    break
                if lane is None or self._staff():
                    self._changed.wait(remaining)
                    continue
                lane.busy = True
            self._work(lane)  # no thread can start: the interpreter is about to exit
        return len(self)

    # --- threads ------------------------------------------------------------------------------------------------------

    def _staff(self) -> bool:
        """Wake a thread, or start one. Return whether any thread runs."""
        if self._waiting:
            self._changed.notify_all()
            return True
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        if not self._drains_at_end:
            self._drains_at_end = True
            _drain_at_end_of_child()
        if len(self._threads) < THREADS:
            thread = threading.Thread(target=self._run, name="onceward-sender", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter exits
                return bool(self._threads)
            self._threads.add(thread)
        return True

    def _run(self) -> None:
        while (lane := self._next()) is not None:
            self._work(lane)

    def _next(self) -> Lane | None:
        """Wait for a lane with work. None: nobody needs this thread."""
        quiet_at = boottime() + IDLE
        with self._lock:
            while True:
                self._sort()
                lane = self._ready()
                if lane is not None:
                    lane.busy = True
                    if self._ready() is not None:
                        self._staff()
                    return lane
                now = boottime()
                # The last thread stays for the records that wait for a target.
                if now >= quiet_at and (not self._records or self._waiting):
                    self._threads.discard(threading.current_thread())
                    return None
                wakes_at = min((one.wakes_at for one in self._lanes.values() if not one.busy), default=quiet_at)
                self._waiting += 1
                self._changed.wait(max(0.01, min(wakes_at, max(quiet_at, now + IDLE)) - now))
                self._waiting -= 1

    def _sort(self) -> None:
        """Put what was handed over into its lane."""
        while self._inbox:
            outgoing = self._inbox.popleft()
            if outgoing.place not in self._records and outgoing.head is not None:
                self._records[outgoing.place] = outgoing
                self._queue(outgoing)

    def _queue(self, outgoing: SendingRecord) -> None:
        entry = outgoing.head
        if (
            entry is not None and entry.tries == 0 and self.is_full(entry.to)
        ):  # all before it may have been sent meanwhile
            outgoing.put_off(self.pause_of(entry.to))
            if not outgoing.must_note:
                self._forget(outgoing)
                return
        if entry is None or outgoing.must_note or not outgoing.is_ours:
            lane: Lane = self._lanes.setdefault(id(outgoing.store), StoreLane(outgoing.store))
        else:
            lane = self._lanes.setdefault(entry.to, TargetLane(entry.to))
        lane.add(outgoing)

    def _forget(self, outgoing: SendingRecord) -> None:
        self._records.pop(outgoing.place, None)
        outgoing.wake()

    def _ready(self) -> Lane | None:
        now = boottime()
        return next((one for one in self._lanes.values() if not one.busy and one.wakes_at <= now), None)

    # --- work ---------------------------------------------------------------------------------------------------------

    def _work(self, lane: Lane) -> None:
        """Do one request of a lane."""
        batch: list[SendingRecord] = []
        going_on: list[SendingRecord] = []
        try:
            with self._lock:
                batch = lane.take()
            before = sum(outgoing.left for outgoing in batch)
            going_on = lane.work(batch)
            refusals = sum(event.kind == "refused" for outgoing in batch for event in outgoing.events)
            with self._lock:
                self.refused += refusals
                self.gone += before - sum(outgoing.left for outgoing in batch)
            for outgoing in batch:
                outgoing.tell()
        except Exception:  # a target's, or an observer's: the records stay in the ledger
            logger().exception("%s: its messages are not sent by this process", lane.name)
        finally:
            with self._lock:
                for outgoing in batch:
                    if outgoing in going_on:
                        self._queue(outgoing)
                    else:
                        self._forget(outgoing)
                lane.busy = False
                self._lanes[lane.place] = self._lanes.pop(lane.place)  # last in turn
                for other in [one for one in self._lanes.values() if one.is_over]:
                    del self._lanes[other.place]
                self._changed.notify_all()


SENDER = Sender()


def send_soon(
    store: Store,
    record: Record,
    seal: Seal | None,
    observers: Observers,
    until: float = 0.0,
    first_try: "Future[None] | None" = None,
    *,
    is_certain: bool = True,
) -> bool:
    """Let this process send the messages of a record: see :class:`SendingRecord` and :meth:`Sender.hand_over`."""
    try:
        outgoing = SendingRecord(store, record, seal, observers, until, first_try, is_certain=is_certain)
    except ValueError as error:
        logger().warning("%s: its unsent messages cannot be read: %s", record.key, describe(error))
        return False
    return SENDER.hand_over(outgoing)


def drain(seconds: float) -> int:
    """Wait until this process has sent what it can send now. Call it before the process is frozen or ends.

    Returns:
        How many records are left whose messages it has not sent. A relay or a duplicate sends them when they are due.
    """
    return SENDER.drain(seconds)


async def drain_async(seconds: float) -> int:
    """Like :func:`drain`, for a coroutine."""
    import asyncio

    return await asyncio.to_thread(drain, seconds)


def _drain_at_exit() -> None:
    atexit.unregister(_drain_at_exit)
    unsent = SENDER.drain(AT_EXIT)
    if unsent:
        logger().warning(
            "%d records have messages that this process has not sent. A relay sends them when they are due", unsent
        )


def _drain_at_end_of_child() -> None:
    """Drain also in a process of multiprocessing: after a fork it ends without what atexit has."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _drain_at_exit, exitpriority=0)


def _forked() -> None:
    global SENDER  # the child does not have the parent's threads and locks, and the parent sends what it had
    SENDER = Sender()


atexit.register(_drain_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

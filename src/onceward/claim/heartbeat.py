"""Renews the leases of handlers that take long, sync and async alike: a timer thread, and a thread per store to renew.

A handler that is done before its first beat is due pays one dict entry: the timer is not even woken. It sleeps no longer
than the shortest interval between beats it has seen, so a claim made meanwhile is never due before it wakes. The timer
asks no store: what is due is renewed in a thread of its store's own, which ends with that, so a store that hangs holds up
its own claims and no other's.
"""

import os
import threading
from collections.abc import Callable
from weakref import WeakSet, ref

from onceward.claim.lease import Lease
from onceward.core import steps
from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.errors import StoreError
from onceward.observe.logs import logger
from onceward.results.outcomes import describe
from onceward.stores.contract import Store

LONGEST = 3600.0  # seconds of one sleep; more than threading.TIMEOUT_MAX would end the thread
IDLE = 60.0  # seconds without a claim after which the timer ends; the next claim starts another
_NEVER = float("inf")


class Heartbeat:
    """The claims under renewal, the timer, and the stores that are being asked."""

    def __init__(self) -> None:
        # Weak, so that a claim whose block was never left, or whose caller was interrupted, is not renewed for ever.
        self._claims: dict[int, ref[Lease]] = {}
        # Callers take the lock itself: an interrupt as a condition is entered would keep it locked for ever.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._wakes_at = _NEVER  # infinite whenever the timer is not asleep, so that watch() goes through the lock
        self._interval = _NEVER
        self._running = False
        self._renewing: set[int] = set()  # by id(): the claims in hand keep their store alive meanwhile

    def watch(self, claim: Lease) -> None:
        """Renew ``claim`` from its first beat on."""
        if (
            claim.interval <= 0 or claim.clock is not boottime
        ):  # a clock passed in is moved by hand, and so are its beats
            return
        self._claims[claim.number] = ref(claim)
        if claim.due < self._wakes_at:
            with self._lock:
                self._interval = min(self._interval, claim.interval)
                if self._running:
                    self._wake.notify()
                else:
                    # Without a thread the lease stands, claim.lost tells when it is over, and the next claim tries again.
                    self._running = started("onceward-heartbeat", self._run)

    def forget(self, claim: Lease) -> None:
        """Renew ``claim`` no more."""
        self._claims.pop(claim.number, None)

    def _alive(self) -> list[Lease]:
        claims = []
        for number, weak in list(self._claims.items()):
            claim = weak()
            if claim is not None:
                claims.append(claim)
            else:
                self._claims.pop(number, None)
        return claims

    def _run(self) -> None:
        try:
            self._watch_all()
        except BaseException:
            with self._wake:
                self._running = False  # the next claim starts another thread
            raise

    def _watch_all(self) -> None:
        quiet_since = boottime()
        while True:
            with self._wake:
                self._wakes_at = _NEVER
                now = boottime()
                claims = [c for c in self._alive() if not c.paused]
                if claims:
                    quiet_since = now
                elif now - quiet_since > max(IDLE, self._interval):
                    self._running = False
                    return
                due = min((c.due for c in claims if id(c.store) not in self._renewing), default=_NEVER)
                wakes_at = min(due, now + self._interval)
                claims.clear()  # or the timer itself would keep them alive while it sleeps
                if wakes_at > now:
                    self._wakes_at = wakes_at
                    self._wake.wait(min(wakes_at - now, LONGEST))
                    self._wakes_at = _NEVER
            self._beat()

    def _beat(self) -> None:
        """Have all renewed that are due, store by store; one that is still being asked is left to that."""
        now = boottime()
        by_store: dict[int, list[Lease]] = {}
        for claim in self._alive():
            if claim.over:
                self.forget(claim)
            elif not claim.paused and claim.due <= now and id(claim.store) not in self._renewing:
                by_store.setdefault(id(claim.store), []).append(claim)
        for store, claims in by_store.items():
            self._renewing.add(store)
            if not started("onceward-renewal", self._renew, store, claims):
                self._renew(store, claims)

    def _renew(self, store: int, claims: list[Lease]) -> None:
        try:
            renew(claims)
        finally:
            with self._wake:
                self._renewing.discard(store)
                self._wake.notify()  # the timer has slept without regard to this store
        for claim in claims:  # a slow observer holds up no other renewal
            claim.tell()


def renew(claims: list[Lease]) -> None:
    """Renew claims of one store together; each alone when that fails, so that one that cannot be renewed harms no other."""
    claims = [claim for claim in claims if not claim.over and not claim.paused]  # since they were chosen
    if not claims:
        return
    store: Store = claims[0].store
    asked = [(c.record, c.renewal) for c in claims]
    try:
        outcomes = drive(steps.renewals(store, asked, [c.policy for c in claims], claims[0].clock), store)
    except Exception as error:  # tried again until the lease is over; claim.lost tells the handler
        if len(claims) == 1:
            _failed(claims[0], error)
            return
        for claim in claims:
            if not claim.over:
                renew([claim])
        return
    for claim, outcome in zip(claims, outcomes, strict=True):
        if isinstance(outcome, StoreError):
            _failed(claim, outcome)
        else:
            claim.renewed(outcome)


def _failed(claim: Lease, error: Exception) -> None:
    # A tenth of the interval, so that a lease of three intervals sees some twenty tries.
    claim.due = boottime() + min(1.0, claim.interval / 10)
    if claim.over or getattr(error, "transient", False) or claim in _WARNED:
        return
    _WARNED.add(claim)
    logger().warning(
        "%s: its lease cannot be renewed, and when it is over another worker may run the handler again: %s",
        claim.record.key,
        describe(error),
    )


def started(name: str, run: Callable[..., None], *args: object) -> bool:
    """Start a daemon thread; return whether that was possible."""
    try:
        threading.Thread(target=run, args=args, name=name, daemon=True).start()
    except RuntimeError:  # no more threads, or the interpreter is about to exit
        return False
    return True


_WARNED: WeakSet[Lease] = WeakSet()
HEARTBEAT = Heartbeat()


def _forked() -> None:
    global HEARTBEAT  # the parent's threads and locks do not exist in the child
    HEARTBEAT = Heartbeat()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

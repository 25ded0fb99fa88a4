"""Renews the leases of long handlers, sync and async: one timer thread, and one thread per store to renew.

A handler that ends before its first beat costs one dict entry, and does not wake the timer. The timer sleeps at most the
shortest interval between beats it has seen, so it wakes before any new claim is due. It asks no store. A short-lived thread
per store does, so a store that hangs delays only its own claims.
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
        # Weak: a claim whose block was never left, or whose caller was interrupted, must not be renewed for ever. Nor must one
        # whose event loop is closed: what keeps it alive can stay until the garbage is collected.
        self.claims: dict[int, ref[Lease]] = {}
        # Callers take the lock itself: an interrupt at a condition's entry would leave it locked for ever.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._wakes_at = _NEVER  # infinite while the timer is awake, so that watch() takes the lock
        self._interval = _NEVER
        self._running = False
        self._renewing: set[int] = set()  # ids of stores, which their claims keep alive meanwhile

    def watch(self, claim: Lease) -> None:
        """Renew ``claim`` from its first beat on. With a custom clock, you make the beats by hand."""
        if claim.interval <= 0 or claim.clock is not boottime:
            return
        self.claims[claim.number] = ref(claim)
        if claim.due < self._wakes_at:
            with self._lock:
                self._interval = min(self._interval, claim.interval)
                if self._running:
                    self._wake.notify()
                else:
                    # Without a thread, the lease is not renewed, claim.lost tells its end, and the next claim tries again.
                    self._running = started("onceward-heartbeat", self._run)

    def forget(self, claim: Lease) -> None:
        """Stop renewing ``claim``."""
        self.claims.pop(claim.number, None)

    def _alive(self) -> list[Lease]:
        claims = []
        for number, weak in list(self.claims.items()):
            claim = weak()
            if claim is not None and (claim.loop is None or not claim.loop.is_closed()):
                claims.append(claim)
            else:
                self.claims.pop(number, None)
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
                claims.clear()  # else the sleeping timer would keep them alive
                if wakes_at > now:
                    self._wakes_at = wakes_at
                    self._wake.wait(min(wakes_at - now, LONGEST))
                    self._wakes_at = _NEVER
            self._beat()

    def _beat(self) -> None:
        """Start to renew all claims that are due, store by store. Skip a store that is still being asked."""
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
                self._wake.notify()  # the sleeping timer ignored this store
        for claim in claims:  # last: a slow observer delays no renewal
            claim.tell()


def renew(claims: list[Lease]) -> None:
    """Renew claims of one store together; if that fails, each alone, so that one bad claim harms no other."""
    claims = [claim for claim in claims if not claim.over and not claim.paused]  # they may have ended meanwhile
    if not claims:
        return
    store: Store = claims[0].store
    renewals = [(c.record, c.renewal) for c in claims]
    try:
        outcomes = drive(steps.renewals(store, renewals, [c.policy for c in claims], claims[0].clock), store)
    except Exception as error:  # retried until the lease is over; claim.lost tells the handler
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
    # A tenth of the interval: a lease of three intervals allows about twenty tries.
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
    """Start a daemon thread, and return whether that was possible."""
    try:
        threading.Thread(target=run, args=args, name=name, daemon=True).start()
    except RuntimeError:  # no more threads, or the interpreter is about to exit
        return False
    return True


_WARNED: WeakSet[Lease] = WeakSet()
HEARTBEAT = Heartbeat()


def _forked() -> None:
    global HEARTBEAT  # the child does not have the parent's threads and locks
    HEARTBEAT = Heartbeat()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

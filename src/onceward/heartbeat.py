"""One thread per process that renews the leases of handlers that take long, sync and async alike.

A handler that is done before its first beat is due pays one dict entry: the thread is not even woken. It sleeps no
longer than the shortest interval between beats it has seen, so a claim made meanwhile is never due before it wakes.
"""

import os
import threading
from weakref import ref

from onceward.claim import Claim
from onceward.core import steps
from onceward.core.clock import boottime
from onceward.core.drive import drive
from onceward.stores.contract import Store

LONGEST = 3600.0  # seconds of one sleep; more than threading.TIMEOUT_MAX would end the thread
IDLE = 60.0  # seconds without a claim after which the thread ends; the next claim starts another
_NEVER = float("inf")


class Heartbeat:
    """The claims under renewal and the thread that renews them."""

    def __init__(self) -> None:
        # Weak, so that a claim whose block was never left, or whose caller was interrupted, is not renewed for ever.
        self._claims: dict[int, ref[Claim]] = {}
        self._wake = threading.Condition()
        self._wakes_at = _NEVER  # infinite whenever the thread is not asleep, so that watch() goes through the lock
        self._interval = _NEVER
        self._running = False

    def watch(self, claim: Claim) -> None:
        """Renew ``claim`` from its first beat on."""
        if (
            claim.interval <= 0 or claim.clock is not boottime
        ):  # a clock passed in is moved by hand, and so are its beats
            return
        self._claims[claim.number] = ref(claim)
        if claim.due < self._wakes_at:
            with self._wake:
                self._interval = min(self._interval, claim.interval)
                if self._running:
                    self._wake.notify()
                else:
                    self._start()

    def forget(self, claim: Claim) -> None:
        """Renew ``claim`` no more."""
        self._claims.pop(claim.number, None)

    def _alive(self) -> list[Claim]:
        claims = []
        for number, weak in list(self._claims.items()):
            claim = weak()
            if claim is not None:
                claims.append(claim)
            else:
                self._claims.pop(number, None)
        return claims

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="onceward-heartbeat", daemon=True).start()
        except RuntimeError:
            # No more threads, or the interpreter is about to exit. The lease stands, claim.lost tells when it is over,
            # and the next claim tries again.
            return
        self._running = True

    def _run(self) -> None:
        try:
            self._renew_all()
        except BaseException:
            with self._wake:
                self._running = False  # the next claim starts another thread
            raise

    def _renew_all(self) -> None:
        quiet_since = boottime()
        delays: dict[int, float] = {}
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
                due = min((max(c.due, delays.get(c.number, 0.0)) for c in claims), default=_NEVER)
                wakes_at = min(due, now + self._interval)
                claims.clear()  # or the thread itself would keep them alive while it sleeps
                if wakes_at > now:
                    self._wakes_at = wakes_at
                    self._wake.wait(min(wakes_at - now, LONGEST))
                    self._wakes_at = _NEVER
            delays = self._beat(delays)

    def _beat(self, delays: dict[int, float]) -> dict[int, float]:
        """Renew all that are due, store by store; return until when those that failed are left alone."""
        now = boottime()
        by_store: dict[int, list[Claim]] = {}
        for claim in self._alive():
            if claim.over:
                self.forget(claim)
            elif not claim.paused and claim.due <= now and delays.get(claim.number, 0.0) <= now:
                by_store.setdefault(id(claim.store), []).append(claim)
        later = {key: until for key, until in delays.items() if key in self._claims and until > now}
        for claims in by_store.values():
            if not renew(claims):
                # A tenth of the interval, so that a lease of three intervals sees some twenty tries.
                later |= {c.number: boottime() + min(1.0, c.interval / 10) for c in claims}
        return later


def renew(claims: list[Claim]) -> bool:
    """Renew claims of one store together; return whether the store answered."""
    store: Store = claims[0].store
    asked = [(c.record, max(c.policy.lease, c.remaining)) for c in claims]
    try:
        outcomes = drive(steps.heartbeat(store, asked, [c.policy for c in claims], claims[0].clock), store)
    except Exception:  # noqa: BLE001 - tried again until the lease is over; claim.lost tells the handler
        return False
    for claim, outcome in zip(claims, outcomes, strict=True):
        claim.renewed(outcome)
    return True


HEARTBEAT = Heartbeat()


def _forked() -> None:
    global HEARTBEAT  # noqa: PLW0603 - the parent's thread and locks do not exist in the child
    HEARTBEAT = Heartbeat()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

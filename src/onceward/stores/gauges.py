"""Reads the gauges of a ledger for metrics: how many keys are parked or lapsed, and how old its unsent messages are.

A ledger of any size answers as fast, because all of it is read by index. What has no index is left out, unless you ask for it.
"""

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from onceward.core.drivers import drive
from onceward.core.selections import DueWithin
from onceward.observe.logs import logger
from onceward.observe.measures import GAUGE_AGE, KEYS, OUTBOX_AGE, Readings
from onceward.stores.capabilities import OUTBOX

if TYPE_CHECKING:
    from onceward.stores.ledger import Ledger

_STATES: Final = ("IN_PROGRESS", "RELEASED", "PARKED", "LAPSED")
_PATIENCE: Final = 2.0  # seconds that a reader waits; Prometheus gives up a whole scrape after ten
_DUE: Final = 1000  # records among which the one with the oldest messages is looked for: those that are due first
_AHEAD: Final = 3600.0  # seconds: messages that a target did not take wait for their next try, ten minutes at most


class HasLedger(Protocol):
    """What has a ledger: a :class:`onceward.Once`."""

    @property
    def ledger(self) -> "Ledger":
        """Its ledger."""


class LedgerGauges:
    """Reads the gauges of a ledger, at most once in ``every`` seconds.

    If the ledger cannot be reached, or does not answer soon, the readings are the last ones, and the gauge ``onceward.gauges.age``
    grows. A ledger that hangs does not hold up the other metrics.

    Args:
        once: whose ledger.
        every: seconds for which readings are kept.
        scan: whether to read the whole ledger for counts that it has no index for. That costs a read of each record.
    """

    def __init__(self, once: HasLedger, every: float = 60.0, *, scan: bool = False) -> None:
        self._once = once
        self._every = every
        self._scan = scan
        self._lock = threading.Lock()
        self._began = time.monotonic() - every  # of the latest reading
        self._reader: threading.Thread | None = None
        self._last: tuple[Readings, float] = {}, time.monotonic()  # and when it was read

    def read(self, patience: float | None = _PATIENCE) -> Readings:
        """Return each gauge's values by labels. A gauge that this ledger does not have is missing.

        Args:
            patience: seconds to wait for a reading, from its beginning; None waits for its end.
        """
        with self._lock:
            reader, now = self._reader, time.monotonic()
            if (reader is None or not reader.is_alive()) and now - self._began >= self._every:
                self._began = now
                reader = self._reader = threading.Thread(target=self._read, name="onceward-gauges", daemon=True)
                reader.start()
        if reader is not None:
            reader.join(None if patience is None else max(0.0, self._began + patience - time.monotonic()))
        readings, at = self._last
        return {**readings, GAUGE_AGE: {(): time.monotonic() - at}}

    def _read(self) -> None:
        try:
            self._last = self._measure(), time.monotonic()
        except Exception as error:
            logger().warning("the gauges of %s cannot be read: %s", self._once.ledger.store.url, error)

    def _measure(self) -> Readings:
        ledger = self._once.ledger
        counts = dict(ledger.survey().counts)
        if self._scan and not counts.keys() >= set(_STATES):
            counts = ledger.stats()
            counts["LAPSED"] = counts["lapsed"]
        read: Readings = {KEYS: {(state.lower(),): float(counts[state]) for state in _STATES if state in counts}}
        if OUTBOX.of(ledger.store) is not None:
            page = drive(ledger.store.select(DueWithin(_AHEAD), None, _DUE), ledger.store)
            # The lease of a record ends with its completion.
            read[OUTBOX_AGE] = {(): max([page.now - one.lease_until for one in page.records], default=0.0)}
        return read

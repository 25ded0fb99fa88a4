"""Completing a key by hand."""

import os

from onceward.core import protocol
from onceward.core.policy import Policy
from onceward.core.record import PARKED, Record, Write
from onceward.errors import Busy, OncewardError
from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec
from onceward.stores.contract import KeepsMessage
from onceward.stores.ledger_reader import LedgerReader


class LedgerSettling(LedgerReader):
    """The part of :class:`onceward.stores.ledger.Ledger` that completes keys by hand."""

    def settle(
        self,
        key: str,
        result: object,
        *,
        retention: float | None = None,
        message: bool = False,
        seen: Record | None = None,
    ) -> Record:
        """Complete ``key`` by hand: its effect is made, and duplicates get ``result``. Return the new record.

        Its steps stay. Messages that its handler would have sent are not sent. The result is not sealed. A handler with a
        return annotation reads the result as that type. If it does not fit, duplicates get ResultUnavailable.

        Args:
            key: the key as it stands in the ledger.
            result: what the handler would have returned.
            retention: seconds that it answers duplicates; ``float("inf")`` is for ever. None is what the record knows of its
                handler's. A parked record does not know it, so it then stays 14 days, as :class:`Policy` says.
            message: whether to settle it even if it keeps a message, which is then lost.
            seen: the record as you looked at it. If it has changed since, nothing is done. None settles it as it is.

        Raises:
            NotFound: there is no such key.
            Busy: a worker holds it.
            KeepsMessage: it keeps a message of a queue, and ``message`` is false.
            OncewardError: it is completed, or has changed, or the result cannot be recorded.
        """
        try:
            text = Codec().encode(result)
        except NotReplayable as error:
            raise OncewardError(f"{key}: the result cannot be recorded: {error}") from error
        owner = os.urandom(16).hex()

        def write(record: Record, now: float) -> Write | None:
            if seen is not None and record.version != seen.version:
                raise OncewardError(f"{key}: it has changed since you looked at it. Nothing was done: look at it again")
            if protocol.is_live(record, now):
                raise Busy(key, record.lease_until - now, record.worker)
            if protocol.message_in(record) is not None and not message:
                raise KeepsMessage(
                    f"{key}: it keeps a message that is in no queue any more. Settling it loses the message"
                )
            return protocol.settled(record, owner, text, kept_for(record) if retention is None else _checked(retention))

        return self._change(key, write, "cannot be settled: that is for a key that is parked, given back or lapsed")


def kept_for(record: Record) -> float | None:
    """Return for how many seconds a record stays when it is settled; None is for ever."""
    if record.status == PARKED:  # it does not know its policy
        return Policy().retention
    return None if record.expires_at is None else record.expires_at - record.lease_until


def _checked(retention: float) -> float | None:
    """Return a retention; raise ValueError or TypeError if it is none."""
    return None if retention == float("inf") else Policy(lease=1e-3, retention=retention).checked().retention

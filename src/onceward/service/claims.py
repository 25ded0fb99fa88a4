"""What the service does with a ledger. Every request finds its claim in the ledger by key, id and fence.

Each method can be repeated: the same request gets the same answer. ``core/protocol.py`` decides; nothing here reads a status.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from msgspec import UNSET, Raw, UnsetType

from onceward.claim.guard import Guard
from onceward.claim.remote import RemoteClaim, for_owner, remote_claim
from onceward.claim.replays import CallOutcome, Replays, parked_error
from onceward.claim.stepping.handler_steps import RecordedStep
from onceward.core import worker
from onceward.core.drivers import drive_async
from onceward.core.policy import Options
from onceward.core.protocol import is_mine, message_in
from onceward.core.record import Record, Reply
from onceward.core.retries import patience, retry_transient
from onceward.core.steps import fetch_result
from onceward.errors import LeaseLost, OncewardError, Parked, ResultUnavailable
from onceward.keys.ledger_keys import derived_key, ledger_key, step_name
from onceward.once import Once
from onceward.results.step_entries import Doubt, Entry, entries_of
from onceward.service.bodies import (
    JSON_TEXT,
    ClaimBody,
    Claimed,
    ClaimEnded,
    CompleteBody,
    ExtendBody,
    Extended,
    HeldBody,
    Key,
    LookBody,
    Looked,
    NoResult,
    ReleaseBody,
    Replayed,
    StepAnswer,
    StepBody,
)
from onceward.service.problems import OTHER_RESULT, RequestRefused
from onceward.terminal import line

_ONE: Final = "give one of result and no_result"
_LONGEST_LEASE: Final = 3600.0  # seconds
_LONGEST_WAIT: Final = 60.0  # seconds that a claim waits for a busy key
_PATIENCE: Final = 5.0  # seconds to try to record an end; then the client asks again


class Claims:
    """The claims of a ledger's clients; ``once`` is the Once whose ledger it serves."""

    def __init__(self, once: Once) -> None:
        self._once = once
        self._store = once.store
        self.clock = once.guards.clock
        self._plain = lru_cache(1000)(partial(self._guard, options={}))

    async def claim(
        self, name: str, body: ClaimBody, mark: str | None, wait: float, since: float, client: str
    ) -> Claimed | Replayed:
        """Claim a key, or return what is recorded. ``mark`` is the fingerprint, and ``since`` is when the request came in.

        Raises:
            Busy, Mismatch, OwnerUsed, Parked, ResultUnavailable, StoreError: as their docs say.
            ValueError, TypeError, KeyMissing: the request is wrong.
        """
        _check_lease(body.lease)
        key = self._key(name, body.key)
        keep = body.retention
        options: Options = {
            "lease": body.lease,
            "retention": None if keep is None else max(keep, body.lease),
            "max_attempts": body.max_attempts,
            "on_lapse": body.on_lapse,
            "on_busy": min(wait, _LONGEST_WAIT) or "raise",
        }
        guard = self._guard(name, options)
        token = worker.NAMED.set(f"{client}/{_plain(body.worker)}" if body.worker else client)
        try:
            entry = await for_owner(guard, body.id).enter_async(key, mark)
        finally:
            worker.NAMED.reset(token)
        if isinstance(entry, CallOutcome):
            assert isinstance(entry.value, Raw)
            return Replayed(result=entry.value, attempt=entry.attempt)
        return Claimed(
            fence=entry.fence,
            attempt=entry.attempt,
            lease=self._lease_of(entry.remaining, since, key),
            keys=_derived_keys(key, body.derive),
            steps=_done_steps(entry.record),
        )

    async def extend(self, name: str, body: ExtendBody, since: float) -> Extended:
        """Renew a claim. Raises LeaseLost."""
        _check_lease(body.lease)
        claim = await self._claim_of(name, body, body.lease, "extend its lease")
        await claim.extend_async(body.lease)
        key = claim.record.key
        return Extended(lease=self._lease_of(claim.remaining, since, key), keys=_derived_keys(key, body.derive))

    async def step(self, name: str, body: StepBody, since: float) -> StepAnswer:
        """Return what is recorded of a step, record it, or let the client make it.

        Raises:
            LeaseLost: the key has gone on without this claim.
            Parked: an earlier attempt ended in this step, or its result cannot be read. It must not run again. The key is parked.
            RequestRefused: it is recorded with another result.
            StoreError, StepNotRecorded: ask again.
            ValueError: the request has a result, and a reason why there is none.
        """
        _check_lease(body.lease)
        value = _value_of(body)
        claim = await self._claim_of(name, body, body.lease, f"make its step {body.step!r}")
        text, chain = step_name(body.step), claim.handler_steps
        entry = entries_of(claim.record.steps).get(text)
        made, result = True, body.result
        if entry is not None and entry.done:
            result = await self._recorded_step(claim, entry, value)
        elif value is not UNSET:
            await chain.notes.write_async(chain.notes.success(text, JSON_TEXT, value, 0.0), value)
        else:
            made = False
            await self._begin_step(claim, text, entry, parks=body.on_lapse == "park")
        return StepAnswer(
            made=made,
            result=result,
            key=derived_key(claim.record.key, (body.step,)),
            lease=claim.remaining + (self.clock() - since),
        )

    async def complete(self, name: str, body: CompleteBody, _: float) -> ClaimEnded:
        """Complete a key.

        Raises:
            LeaseLost: the key has gone on without this claim.
            RequestRefused: this claim has completed it with another result.
            ResultNotRecorded, StoreError: ask again.
            ValueError: the request has no result, and no reason for that.
        """
        value = _value_of(body)
        if value is UNSET:
            raise ValueError(_ONE)
        claim = await self._claim_of(name, body, _PATIENCE, "record its result")
        await claim.complete_async(value)
        record = claim.record
        # Another request can have completed it, before this one or meanwhile.
        if isinstance(value, Raw) and record.result not in {None, JSON_TEXT.encode(value)}:
            await self._check_result(claim, value)
        why = UNSET if record.result is not None else record.error or "none was stored"
        return ClaimEnded(outcome="completed", replayable=record.result is not None, why=why)

    async def release(self, name: str, body: ReleaseBody, _: float) -> ClaimEnded:
        """Give a key back for a retry. Raises LeaseLost and StoreError."""
        claim = await self._claim_of(name, body, _PATIENCE, "release it")
        await claim.release_async(body.error)
        return ClaimEnded(outcome="released")

    async def park(self, name: str, body: ReleaseBody, _: float) -> ClaimEnded:
        """Stop retrying a key until an operator unparks it. Raises LeaseLost and StoreError."""
        claim = await self._claim_of(name, body, _PATIENCE, "park it")
        await claim.park_async(body.error)
        return ClaimEnded(outcome="parked")

    async def look(self, name: str, body: LookBody, _: float) -> Looked | None:
        """Return what is recorded of a key; None if there is nothing."""
        key = self._key(name, body.key)
        reply = await self._load(key)
        if reply.record is None:
            return None
        record = await drive_async(fetch_result(reply.record, self.clock), self._store)
        try:
            value = Replays(self._plain(name).policy, self.clock, JSON_TEXT).recorded(record)
        except OncewardError:
            value = UNSET
        return Looked(
            status=record.status,
            attempt=record.attempts,
            fence=record.fence,
            lease=max(0.0, record.lease_until - reply.now),
            worker=record.worker,
            error=record.error,
            steps=_done_steps(record),
            result=value if isinstance(value, Raw) and message_in(record) is None else UNSET,
        )

    async def check(self) -> None:
        """Raise StoreError if the ledger does not answer."""
        await self._load("onceward:health")

    async def _load(self, key: str) -> Reply:
        verb = partial(self._store.load, key)
        return await drive_async(retry_transient(verb, self.clock, patience(self.clock)), self._store)

    async def _claim_of(self, name: str, body: HeldBody, lease: float, doing: str) -> RemoteClaim:
        key = self._key(name, body.key)
        return await remote_claim(self._plain(name), key, body.id, body.fence, lease=lease, doing=doing)

    async def _recorded_step(
        self, claim: RemoteClaim, entry: Entry, sent: Raw | NoResult | UnsetType
    ) -> Raw | UnsetType:
        """Return the recorded result of a step; the one that the client has ``sent``, if nobody can compare the two."""
        try:
            result = await drive_async(claim.handler_steps.recorded(RecordedStep(entry, JSON_TEXT)), self._store)
        except Parked:
            if sent is not UNSET:
                return sent if isinstance(sent, Raw) else UNSET
            await claim.park_async(claim.handler_steps.parks)
            raise
        assert isinstance(result, Raw)
        if isinstance(sent, Raw) and JSON_TEXT.encode(result) != JSON_TEXT.encode(sent):
            raise RequestRefused(
                OTHER_RESULT, f"{claim.record.key}: its step {entry.name!r} is recorded with another result"
            )
        return result

    async def _check_result(self, claim: RemoteClaim, value: Raw) -> None:
        record = await drive_async(fetch_result(claim.record, self.clock), self._store)
        try:
            result = Replays(claim.policy, self.clock, JSON_TEXT).recorded(record)
        except ResultUnavailable:  # sealed for good: nobody can compare it
            return
        if JSON_TEXT.encode(result) != JSON_TEXT.encode(value):
            raise RequestRefused(
                OTHER_RESULT, f"{record.key}: this claim has completed it with another result, which stands"
            )

    async def _begin_step(self, claim: RemoteClaim, text: str, entry: Entry | None, *, parks: bool) -> None:
        chain, record = claim.handler_steps, claim.record
        if not is_mine(record, record):
            raise LeaseLost(record.key, f"begin its step {text!r}")
        chain.check_lease(text)
        if parks and entry is not None and not entry.is_of(claim.fence, claim.attempt):
            why = f"attempt {entry.attempt} ended in its step {text!r}, which may have been made"
            await claim.park_async(why)
            raise parked_error(claim.record, why, Doubt(text))
        chain.notes.check_room(text)
        if parks:
            await chain.notes.write_async(chain.notes.beginning(text))

    def _guard(self, name: str, options: Options) -> Guard:
        return self._once.guards.for_keys(name, options, no_skip="", heartbeat=False, codec=JSON_TEXT)

    def _key(self, name: str, key: Key) -> str:
        return ledger_key(name, tuple(key) if isinstance(key, list) else key)

    def _lease_of(self, remaining: float, since: float, key: str) -> float:
        """Return the rest of a lease, counted from when the request came in, which is after it was sent."""
        if not remaining:
            raise LeaseLost(key, "begin its work")
        return remaining + (self.clock() - since)


def _check_lease(lease: float) -> None:
    if lease > _LONGEST_LEASE:
        raise ValueError(
            f"lease: {lease:g} s is longer than this service grants ({_LONGEST_LEASE:g} s). Extend it instead"
        )


def _value_of(body: StepBody | CompleteBody) -> Raw | NoResult | UnsetType:
    if body.no_result is UNSET:
        return body.result
    if body.result is not UNSET:
        raise ValueError(_ONE)
    return NoResult(body.no_result)


def _plain(name: str) -> str:
    """Return a worker's name in ASCII: a history of attempts counts characters, and has room for so many bytes."""
    return line(name).encode("ascii", "replace").decode()


def _derived_keys(key: str, parts: Sequence[str]) -> dict[str, str]:
    return {part: derived_key(key, (part,)) for part in parts}


def _done_steps(record: Record) -> list[str]:
    try:
        return [entry.name for entry in entries_of(record.steps).values() if entry.done]
    except ValueError:
        return []

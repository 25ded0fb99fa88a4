"""What a duplicate gets: the recorded result or exception, from the ledger or this process's memory, or why not."""

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

from onceward.core.clock import Clock
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, unknown_needs
from onceward.core.record import COMPLETED, Elsewhere, Record
from onceward.core.steps import Refused
from onceward.errors import Busy, Mismatch, OwnerUsed, Parked, ResultUnavailable, UnknownNeed, UnknownStatus
from onceward.results.outcomes import SEALED, opened_note, sealing

if TYPE_CHECKING:
    from onceward.results.codec import Codec
    from onceward.results.step_entries import Doubt

T_co = TypeVar("T_co", covariant=True)


class CallOutcome(Generic[T_co]):
    """The outcome of a guarded call, as ``charge.outcome(order)`` returns it.

    Attributes:
        value: the handler's result; None when ``on_busy="skip"`` skipped the call.
        replayed: whether the value was recorded before, so the handler did not run now.
    """

    __slots__ = ("_record", "replayed", "value")

    def __init__(self, value: T_co, record: Record, *, replayed: bool) -> None:
        self.value = value
        self.replayed = replayed
        self._record = record

    @property
    def attempt(self) -> int:
        """The number of the attempt on the key, from 1."""
        return self._record.attempts

    @property
    def recorded_at(self) -> float | None:
        """When the value was recorded (seconds, on the ledger's clock, as in a record); None when the call was skipped."""
        record = self._record  # a completed record's lease ended with it, while later writes strike out its messages
        return max(record.created_at, record.lease_until) if record.status == COMPLETED else None

    def __repr__(self) -> str:
        return (
            f"CallOutcome(value={self.value!r}, replayed={self.replayed}, attempt={self.attempt}, "
            f"recorded_at={self.recorded_at})"
        )


class _CachedRecord(NamedTuple):
    """A record that this process remembers until ``until`` on its own clock."""

    record: Record
    until: float


class Replays:
    """Answers duplicates as one guard's ``policy`` says. Without a ``codec``, each result is stored by its own type."""

    def __init__(self, policy: Policy, clock: Clock, codec: "Codec | None" = None) -> None:
        from onceward.results import codec as codecs  # msgspec is loaded with the first guard, not with onceward

        self._policy = policy
        self._clock = clock
        self.codec = codec or codecs.Codec()
        self._codecs = codecs
        if policy.seal is not None:
            sealing()  # now: after a handler has begun, nothing is imported on the way to its record
        self._cache: dict[str, _CachedRecord] = {}

    def recorded(self, record: Record) -> object:
        """Return the recorded result, or raise the recorded exception or ResultUnavailable."""
        result = record.result
        if result is None:
            raise ResultUnavailable(record.key, opened_note(record.error, self._policy) or "none was stored")
        if type(result) is not str:
            why = f"it is in {result}, and was not fetched" if type(result) is Elsewhere else "it is no text"
            raise ResultUnavailable(record.key, why)
        try:
            if not result.startswith(self._codecs.ENVELOPE):  # neither sealed nor raised
                return self.codec.decode(result)
            if result.startswith(SEALED):
                result = cast("str", sealing().opened(self._policy.seal, result))
            if not result.startswith(self._codecs.RAISED):
                return self.codec.decode(result)
            raised = self._codecs.decode_exception(result, self._policy.final)
        except self._codecs.NotReplayable as reason:
            raise ResultUnavailable(record.key, str(reason)) from reason
        raise raised

    def remember(self, record: Record, seconds: float | None, since: float) -> None:
        """Answer from ``record`` until ``seconds`` after ``since``; None is for ever."""
        cache = self._cache
        cache[record.key] = _CachedRecord(record, float("inf") if seconds is None else since + seconds)
        while len(cache) > self._policy.cache:
            try:
                del cache[next(iter(cache))]
            except (KeyError, RuntimeError, StopIteration):  # another thread was faster
                return

    def remembered(self, key: str) -> Record | None:
        """Return the record that :meth:`recall` answers from, or None."""
        entry = self._cache.get(key)
        return None if entry is None or self._clock() >= entry.until else entry.record

    def recall(self, key: str, fingerprint: str | None) -> CallOutcome[object] | None:
        """Return the remembered answer, or None. Raises Mismatch, and what is recorded."""
        entry = self._cache.get(key)
        if entry is None or self._clock() >= entry.until:
            return None
        before = entry.record.fingerprint
        if fingerprint is not None and before is not None and fingerprint != before:
            raise Mismatch(key)
        return CallOutcome(self.recorded(entry.record), entry.record, replayed=True)


def parked_error(record: Record, why: str | None, doubt: "Doubt | None") -> Parked:
    """Return the error that says that a key is parked, why, and what a person does about it."""
    step = None if doubt is None else doubt.step
    return Parked(record.key, record.attempts, why, record.worker, in_doubt=doubt is not None, step=step)


def refusal(answer: Refused, policy: Policy) -> Busy | Mismatch | OwnerUsed | Parked | UnknownNeed | UnknownStatus:
    """Return the error that says why a key cannot be claimed."""
    record = answer.record
    if answer.verdict is Verdict.UNKNOWN:
        needs = unknown_needs(record)
        return UnknownNeed(record.key, needs) if needs else UnknownStatus(record.key, record.status)
    if answer.verdict is Verdict.MISMATCH:
        return Mismatch(record.key)
    if answer.verdict is Verdict.USED:
        return OwnerUsed(record.key)
    if answer.verdict is Verdict.PARKED:
        from onceward.results.step_entries import doubt_about  # it loads msgspec

        return parked_error(record, opened_note(record.error, policy), doubt_about(record))
    known_for = max(0.0, record.lease_until - answer.wait - record.created_at)
    return Busy(record.key, answer.wait, record.worker, known_for)

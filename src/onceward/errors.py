"""Every error of onceward. Each says what happened to which key, and what to do next."""


class OncewardError(Exception):
    """The base class of all onceward errors."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (type(self), self.args, self.__dict__))


class KeyMissing(OncewardError):
    """The key, or a part of it, is missing from the input. Nothing has run."""


class _KeyedError(OncewardError):
    """An error about one key; ``key`` is the key in the ledger."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class Busy(_KeyedError):
    """The key is claimed by another worker whose lease is live.

    Attributes:
        key: the key in the ledger.
        retry_after: seconds until its lease ends, unless it is renewed.
        worker: who holds it, as "host/1234"; None if not recorded.
    """

    def __init__(self, key: str, retry_after: float, worker: str | None = None) -> None:
        super().__init__(
            f"{key}: another worker{(worker and f' ({worker})') or ''} holds this key for {retry_after:.1f} s more, or longer if it renews its lease. "
            "Deliver again later, or wait for its result with on_busy=SECONDS",
            key,
        )
        self.retry_after = retry_after
        self.worker = worker


class Reentrant(_KeyedError):
    """The handler of a key asked for the same key again, which would wait for itself for ever."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key}: this very key is being handled by the caller. A nested guard needs a key or a name of its own", key
        )


class Mismatch(_KeyedError):
    """The key was used before with another input: the fingerprints differ."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key}: this key was used before with a different input. Give each operation a key of its own, or "
            "fingerprint only the part of the input that must not change",
            key,
        )


class Parked(_KeyedError):
    """The key is parked: it is not retried until an operator clears it.

    Attributes:
        key: the key in the ledger.
        attempts: how many claims it had.
        last_error: the error of the last one, or None.
        worker: who made the last claim, as "host/1234"; None if not recorded.
    """

    def __init__(self, key: str, attempts: int, last_error: str | None, worker: str | None = None) -> None:
        super().__init__(
            f"{key}: parked after {attempts} attempt(s){(worker and f', the last by {worker}') or ''}; "
            f"last error: {last_error or 'none recorded'}. Fix its cause, then `onceward unpark KEY` lets it run again",
            key,
        )
        self.worker = worker
        self.attempts = attempts
        self.last_error = last_error


class Completed(_KeyedError):
    """The key is already completed, so the body of a ``with once.claim(...)`` must not run.

    Attributes:
        key: the key in the ledger.
        result: the recorded result.
    """

    def __init__(self, key: str, result: object) -> None:
        super().__init__(f"{key}: completed already; the recorded result is in this error's .result", key)
        self.result = result


class LeaseLost(_KeyedError):
    """This worker was paused or cut off for longer than its lease. It lost the key, so its write was refused."""

    def __init__(self, key: str, doing: str) -> None:
        super().__init__(
            f"{key}: the claim was lost before it could {doing}: the lease ran out and the key went on without this "
            "worker, whose outcome is not recorded. Check claim.lost before each effect, hand claim.fence to the "
            "downstream, or raise lease=",
            key,
        )


class ForkedClaim(OncewardError):
    """The claim belongs to the process that this one was forked from.

    Only that parent can end, renew or flush its claims. Nothing was written here.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: claimed by the process that this one was forked from, so nothing is recorded here, and the parent's "
            "claim is untouched. End a forked child with os._exit(), or claim a key of its own in it"
        )
        self.what = what


class UnknownStatus(_KeyedError):
    """The key's record has a status that this version of onceward does not know, so nothing runs.

    Attributes:
        key: the key in the ledger.
        status: the status in the record.
    """

    def __init__(self, key: str, status: str) -> None:
        super().__init__(
            f"{key}: its record has the status {status!r}, which this version of onceward does not know; a newer one may "
            "have written it. Nothing ran: upgrade onceward here, or look at the record with `onceward show`",
            key,
        )
        self.status = status


class UnknownNeed(_KeyedError):
    """The key's record needs a feature that this version of onceward does not know, so nothing runs.

    Attributes:
        key: the key in the ledger.
        needs: the names of the features.
    """

    def __init__(self, key: str, needs: list[str]) -> None:
        super().__init__(
            f"{key}: its record needs {', '.join(needs)}, which this version of onceward does not know. Nothing ran, and the "
            "record is unchanged: deploy the newer version on all workers, then deliver again",
            key,
        )
        self.needs = needs


class EffectRefused(_KeyedError):
    """The condition of one of your writes does not hold, so the transaction wrote nothing.

    Attributes:
        key: the key in the ledger.
        index: the number of the write, from 0.
        item: the existing item, as DynamoDB's typed values; None when there is none.
    """

    def __init__(self, key: str, index: int, what: str, item: object) -> None:
        super().__init__(
            f"{key}: the condition of writes[{index}] ({what}) does not hold, so nothing was written, neither the effect nor "
            "the record; the item as it stands is in this error's .item",
            key,
        )
        self.index = index
        self.item = item


class ResultUnavailable(_KeyedError):
    """The key is completed, but its stored result cannot be replayed."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: completed, and will not run again, but its result cannot be replayed: {reason}", key)
        self.reason = reason


class ResultNotRecorded(_KeyedError):
    """The handler succeeded, but the store refused to record it, or was unreachable until the lease was over.

    Attributes:
        key: the key in the ledger.
        result: what the handler returned.
    """

    def __init__(self, key: str, result: object, reason: str) -> None:
        super().__init__(
            f"{key}: the handler succeeded and its result is in this error's .result, but it could not be recorded: {reason}. "
            "A redelivery may run the handler again: see on_lapse and claim.key()",
            key,
        )
        self.result = result


class StepNotRecorded(_KeyedError):
    """A step was made, but the store refused to record it, or was unreachable until the lease was over.

    No later step of this attempt begins, and the key stays claimed until its lease ends. Let this error go on.

    Attributes:
        key: the key in the ledger.
        step: the step's name.
        result: what its function returned.
    """

    def __init__(self, key: str, step: str, result: object, reason: str) -> None:
        super().__init__(
            f"{key}: the step {step!r} was made and its result is in this error's .result, but it could not be recorded: "
            f"{reason}. The next attempt may make it again: see on_lapse and claim.key()",
            key,
        )
        self.step = step
        self.result = result


class StoreError(OncewardError):
    """The store refused or failed. Nothing was run or lost because of it.

    Attributes:
        transient: whether a retry of the same request may succeed.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class ResultWarning(UserWarning):
    """A result was too large or not encodable: the key is completed, but duplicates cannot get the result."""


def _rebuilt(kind: type[OncewardError], args: tuple[object, ...], state: dict[str, object]) -> OncewardError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error

"""Every error of onceward. Each says what happened to which key, and what to do next."""


class OncewardError(Exception):
    """The base class of all onceward errors.

    Cause: Each subclass has its own.

    Fix: Catch the subclasses that your code can handle. Do not catch the others.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (type(self), self.args, self.__dict__))


class KeyMissing(OncewardError):
    """The key, or a part of it, is missing from the input. Nothing has run.

    Cause: A part that ``key=`` names is absent, None or empty in this call. Or the key is the message's id, and the
    message has none.

    Fix: Send the missing part. Or choose a key that every input has.
    """


class _KeyedError(OncewardError):
    """An error about one key; ``key`` is the key in the ledger."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class InputNotKept(OncewardError):
    """The arguments of a call with ``keep_input=True`` cannot be kept in its record. Nothing has run.

    Cause: ``keep_input=True`` keeps the arguments as JSON, of at most 64 KiB. These arguments are larger, or cannot be
    encoded.

    Fix: Pass less, or values that JSON can hold. Or leave out ``keep_input``.
    """


class Busy(_KeyedError):
    """The key is claimed by another worker whose lease is live.

    Cause: The same key came a second time while its first handler still runs, or after a crash whose lease has not
    ended.

    Fix: Deliver again after ``retry_after``, as queues do by themselves. Or wait for the result with
    ``on_busy=SECONDS``.

    Attributes:
        key: the key in the ledger.
        retry_after: seconds until the other worker's lease ends, unless the lease is renewed.
        worker: the worker that has the key, as "host/1234"; None if not recorded.
        known_for: seconds since the key was first claimed; None if that is not known.
    """

    def __init__(self, key: str, retry_after: float, worker: str | None = None, known_for: float | None = None) -> None:
        super().__init__(
            f"{key}: another worker{(worker and f' ({worker})') or ''} holds this key for {retry_after:.1f} s more, or longer if it renews its lease. "
            "Deliver again later, or wait for its result with on_busy=SECONDS",
            key,
        )
        self.retry_after = retry_after
        self.worker = worker
        self.known_for = known_for


class Reentrant(_KeyedError):
    """The handler of a key asked for the same key again, so it would wait for itself forever.

    Cause: A guarded handler calls a guarded function that has the same namespace and key.

    Fix: Give the inner function another key or another ``name=``. Or call the inner function without its guard.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key}: the handler of this key asked for the same key again, and would wait for itself forever. Nothing ran: give "
            "the nested guard its own key or name=",
            key,
        )


class Mismatch(_KeyedError):
    """The key was used before with another input: the fingerprints differ.

    Cause: Two operations share one key, or a client changed its request and kept the key.

    Fix: Give each operation a key of its own. Or let ``fingerprint=`` cover only what must not change.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key}: this key was used before with a different input. Give each operation a key of its own, or "
            "fingerprint only the part of the input that must not change",
            key,
        )


class Parked(_KeyedError):
    """The key is parked: it is not retried until an operator unparks it.

    Cause: The attempts are used up, or the policy parks after an error or a crash.

    Fix: Run ``onceward show KEY``. If ``in_doubt`` is false, fix the cause in ``last_error``, then run ``onceward
    unpark KEY``. If ``in_doubt`` is true, ask the downstream whether the effect was made. If it was not made, run
    ``onceward unpark KEY``, or for a step ``onceward retry KEY --from STEP``. If it was made, run ``onceward settle KEY
    --result JSON``.

    Attributes:
        key: the key in the ledger.
        attempts: how many claims it had.
        last_error: the error of the last claim, or None.
        worker: who made the last claim, as "host/1234"; None if not recorded.
        in_doubt: whether the effect may have been made, because the worker died, or a step with ``on_lapse="park"`` failed.
    """

    def __init__(
        self,
        key: str,
        attempts: int,
        last_error: str | None,
        worker: str | None = None,
        *,
        in_doubt: bool = False,
        step: str | None = None,
    ) -> None:
        again = "`onceward unpark KEY`" if step is None else "`onceward retry KEY --from STEP`"
        what = "its effect" if step is None else f"its step {step}"
        doubt = (
            f"Ask the downstream whether {what} was made. If not, {again} lets it run again. If the effect is made, "
            "`onceward settle KEY --result JSON` completes the key"
        )
        super().__init__(
            f"{key}: parked after {attempts} attempt(s){(worker and f', the last by {worker}') or ''}; "
            f"last error: {last_error or 'none recorded'}. "
            f"{doubt if in_doubt else 'Fix its cause, then `onceward unpark KEY` lets it run again'}",
            key,
        )
        self.in_doubt = in_doubt
        self.worker = worker
        self.attempts = attempts
        self.last_error = last_error


class Completed(_KeyedError):
    """The key is already completed, so the body of the ``with once.claim(...)`` does not run.

    Cause: A duplicate reached a ``with`` block, which cannot be skipped.

    Fix: Catch this error around the ``with`` statement, and take ``result``.

    Attributes:
        key: the key in the ledger.
        result: the recorded result.
    """

    def __init__(self, key: str, result: object) -> None:
        super().__init__(f"{key}: completed already; the recorded result is in this error's .result", key)
        self.result = result


class LeaseLost(_KeyedError):
    """This worker was paused or cut off for longer than its lease. It lost the key, so its write was refused.

    Cause: The worker was paused, or could not reach the ledger, for longer than its lease.

    Fix: Do not repeat the work here, because another worker may have the key. To prevent this, check ``claim.lost``
    before each effect, pass ``claim.fence`` to the downstream, or raise ``lease=``.
    """

    def __init__(self, key: str, doing: str) -> None:
        super().__init__(
            f"{key}: the claim was lost before it could {doing}, because its lease ended. The outcome is not recorded, and "
            "another worker may have the key. Check claim.lost before each effect, pass claim.fence to the downstream, or raise lease=",
            key,
        )


class ForkedClaim(OncewardError):
    """A forked process used a claim of its parent process.

    Only the parent can end, renew or flush its claims. The forked process has written nothing.

    Cause: A handler forked, and the child process left the handler, or used the handler's claim.

    Fix: End the child process with ``os._exit()``, give it what it needs, such as ``claim.key()``, or let it claim another key.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: claimed by the process that this one was forked from, so nothing is recorded here, and the parent's "
            "claim is untouched. End a forked child with os._exit(), give it what it needs, such as claim.key(), or claim a key of "
            "its own in it"
        )
        self.what = what


class UnknownStatus(_KeyedError):
    """The key's record has a status that this version of onceward does not know, so nothing runs.

    Cause: A newer version of onceward wrote the record, or another program did.

    Fix: Deploy the newer version on this worker. To see the record, run ``onceward show KEY``.

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

    Cause: A newer version of onceward wrote the record with a feature that this version lacks.

    Fix: Deploy the newer version on all workers, then deliver again.

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


class OwnerUsed(_KeyedError):
    """The owner id of this claim was used for this key before, and the earlier claim or its lease has ended.

    Cause: A client of the service sent an id again after its claim, such as the name of its host.

    Fix: Make a new id for each claim: 128 random bits.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key}: this id was used for an earlier claim of this key, which is over. Nothing was claimed: make a new id of "
            "128 random bits for each claim",
            key,
        )


class EffectRefused(_KeyedError):
    """The condition of one of your writes does not hold, so the transaction wrote nothing.

    Cause: DynamoDB checked the condition of your write with ``index``, and it does not hold.

    Fix: Look at ``item``, and decide what the handler does: use another key, return another answer, or raise an error.

    Attributes:
        key: the key in the ledger.
        index: the number of the write, from 0.
        item: the existing item, as DynamoDB's typed values; None when there is none.
    """

    def __init__(self, key: str, index: int, what: str, item: object) -> None:
        super().__init__(
            f"{key}: the condition of writes[{index}] ({what}) does not hold, so nothing was written, neither the effect nor "
            "the record. The existing item is in this error's .item",
            key,
        )
        self.index = index
        self.item = item


class ResultUnavailable(_KeyedError):
    """The key is completed, but its stored result cannot be replayed.

    Cause: The result was too large, could not be encoded, was deleted from S3, or no longer fits the return annotation.

    Fix: Do not run the handler again: its effect happened. Read the outcome from the downstream.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: completed, and will not run again, but its result cannot be replayed: {reason}", key)
        self.reason = reason


class ResultNotRecorded(_KeyedError):
    """The handler succeeded, but the store refused to record it, or stayed unreachable for twice the lease.

    Cause: The ledger stayed away for twice the lease, or refused the write for good.

    Fix: The handler has succeeded. Keep ``result`` if you can. Expect a redelivery, which can run the handler again:
    see ``on_lapse`` and ``claim.key()``.

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


class StepMade(_KeyedError):
    """An earlier attempt has made the step, so the body of the ``with claim.step_transaction(...)`` does not run.

    :class:`Completed` is for a whole key, and ``StepMade`` for one step.

    Cause: A later attempt came to a step that is recorded as made.

    Fix: Catch this error around the ``with`` statement, and continue after the statement.

    Attributes:
        key: the key in the ledger.
        step: the step's name.
        result: the recorded result.
    """

    def __init__(self, key: str, step: str, result: object) -> None:
        super().__init__(
            f"{key}: the step {step!r} was made before; the recorded result is in this error's .result. Catch it around the "
            "with statement, and go on",
            key,
        )
        self.step = step
        self.result = result


class StepNotRecorded(_KeyedError):
    """A step was made, but the store refused to record it, or was unreachable until the lease was over.

    No later step of this attempt begins, and the key stays claimed until its lease ends.

    Cause: The ledger stayed away until the lease was over, or refused the write for good.

    Fix: Do not catch this error. In the next attempt, the step's ``on_lapse`` decides whether the step runs again.

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
    """The store refused a request, or failed. If a claim failed, its handler did not run.

    Cause: The ledger cannot be reached, does not exist, or refuses this role.

    Fix: If ``transient`` is true, deliver again later. If not, do what the message says, or run ``onceward doctor``.

    Attributes:
        transient: whether a retry of the same request may succeed.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class ResultWarning(UserWarning):
    """A result was too large or not encodable: the key is completed, but duplicates cannot get the result.

    Cause: The result is larger than ``max_result``, or has a type that cannot be encoded.

    Fix: Return less or another type, or raise ``max_result``.
    """


def _rebuilt(kind: type[OncewardError], args: tuple[object, ...], state: dict[str, object]) -> OncewardError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error

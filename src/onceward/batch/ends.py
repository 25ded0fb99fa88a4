"""The ends of many claims, recorded together: for batches, whose results may be left out, and for checkpoints."""

from collections.abc import Callable, Collection, Sequence

import msgspec

from onceward.claim import heartbeat
from onceward.claim.called import OUTCOME, RETURNED, Call
from onceward.claim.guard import Guard
from onceward.claim.held import HeldClaim
from onceward.core import many, retries
from onceward.core.drivers import Steps
from onceward.core.protocol import Outcome
from onceward.core.steps import Lost, Settled
from onceward.errors import OncewardError, ResultNotRecorded
from onceward.results.outcomes import NO_TIME


class HandledClaim(msgspec.Struct, eq=False):
    """A claim, and how it must end."""

    claim: HeldClaim | None = None
    value: object = None  # what its handler returned
    error: Exception | None = None  # or raised
    end: Outcome | None = None  # set when the handler has ended
    trouble: Exception | None = None  # why the end was not recorded

    @property
    def held(self) -> HeldClaim:
        """The claim. There must be one."""
        assert self.claim is not None
        return self.claim

    def handled(self, value: object, error: Exception | None) -> None:
        """Note how the handler ended. After an interrupt it may be called again."""
        claim = self.held
        self.value, self.error = value, error
        if self.end is None and claim.settled is None:
            if error is not None and claim.paused is not None:
                claim.paused()  # an interrupt kept its transaction from ending
            claim.handled()
            self.end = claim.completion(value) if error is None else claim.failure(error)


def end_together(
    guard: Guard, handled: Sequence[HandledClaim], leases: Sequence[int], limit: Callable[[float], float] = float
) -> Steps[None]:
    """End claims, in one exchange if the store can, and note failures in ``trouble``. You can drive it again.

    Args:
        guard: theirs.
        handled: the claims. It leaves alone those that are ended, or have trouble.
        leases: for each try, how many leases after the handler's end it may last. The first try is with the results, later
            ones without, because completions matter more.
        limit: returns an earlier time for the end of a try.
    """
    late: dict[HandledClaim, Exception] = {}
    todo: Collection[HandledClaim] = [one for one in handled if one.held.settled is None and one.trouble is None]
    for number, most in enumerate(leases):
        if not todo:
            return
        todo = late = yield from _try(guard, todo, most, limit, bare=number > 0)
    for one, error in late.items():
        one.trouble = error
        if one.error is None:
            one.trouble = ResultNotRecorded(one.held.record.key, one.value, str(error))
            one.trouble.__cause__ = error
        one.held.telling.note("not_recorded", one.held.record, error=error)


def _try(
    guard: Guard, todo: Collection[HandledClaim], leases: int, limit: Callable[[float], float], *, bare: bool
) -> Steps[dict[HandledClaim, Exception]]:
    """Try once. Return the claims whose ends were not recorded in time, and why."""
    ends = []
    for one in todo:
        claim, end = one.held, one.end
        claim.ending = True
        assert end is not None
        if bare and end.result is not None:
            end = NO_TIME
        ends.append((claim.record, end if claim.outbox is None else claim.carrying(end), claim.policy))
    until = lambda: limit(max(one.held.limit(leases, succeeded=one.error is None) for one in todo))
    answers: list[Settled | Lost | OncewardError | None]
    try:
        answers = [*(yield from many.end_many(guard.store, ends, guard.clock, until))]
    except OncewardError as error:  # the store stayed away
        answers = [error] * len(todo)
    late: dict[HandledClaim, Exception] = {}
    for one, (_, end, _), answer in zip(todo, ends, answers, strict=True):
        try:
            if isinstance(answer, OncewardError):
                late[one] = answer
            elif answer is not None:
                one.held.ended(answer, end, "record its result")
            elif one.held.settled is None:  # an interrupted call may have ended it
                if one.error is None:
                    yield from one.held.completing(Call(None, {RETURNED: one.value, OUTCOME: end}))
                else:
                    yield from one.held.leaving(end, "record how it failed")
        except OncewardError as error:  # the others go on
            one.trouble = error
    return late


def give_back_together(
    guard: Guard, claims: Sequence[HeldClaim], limit: Callable[[float], float] = float
) -> Steps[None]:
    """Give back claims whose handlers have not begun, without counting an attempt.

    Raises:
        OncewardError: the store's. What is not given back stays claimed until its lease ends.
    """
    records = []
    for claim in claims:
        heartbeat.HEARTBEAT.forget(claim)
        claim.ending = True
        records.append((claim.record, claim.policy))
    if records:
        until = limit(guard.clock() + retries.CLAIM_PATIENCE)
        yield from many.give_back(guard.store, records, guard.clock, lambda: until)
        for claim in claims:
            claim.let_go()

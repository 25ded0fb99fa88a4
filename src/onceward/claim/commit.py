"""Claim, effect and completion in one write of the ledger."""

from onceward.claim.guard import Guard
from onceward.core import steps
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.steps import Refused, Replay, Settled
from onceward.observe.events import about
from onceward.results.outcomes import completion, warn_of_missing


def commit(guard: Guard, key: str, result: object, write: steps.Commit) -> object:
    """Make claim, effect and completion in one write. Return ``result``, or what was recorded before."""
    asking = _Asking(guard, key)
    return _committed(guard, drive(_committing(guard, asking, result, write), guard.store), result, asking)


async def commit_async(guard: Guard, key: str, result: object, write: steps.Commit) -> object:
    """Like :func:`commit`, for a coroutine."""
    asking = _Asking(guard, key)
    return _committed(guard, await drive_async(_committing(guard, asking, result, write), guard.store), result, asking)


class _Asking:
    """What is asked for, since when, and the span of that."""

    def __init__(self, guard: Guard, key: str) -> None:
        self.bid = guard.bid(key, None)
        self.since = guard.clock()
        self.listening = guard.observers.are_listening()
        self.span = guard.observers.begin(guard.name, key) if self.listening else None
        if self.span is not None:
            self.bid = self.span.on(self.bid)


def _committing(
    guard: Guard, asking: _Asking, result: object, write: steps.Commit
) -> Steps[Settled | Replay | Refused]:
    effect = steps.Effect(completion(guard.codec, guard.policy, result), write)
    try:
        return (yield from steps.claim(guard.store, asking.bid, effect))
    except BaseException as error:
        if asking.span is not None:
            asking.span.end(error)
        raise


def _committed(guard: Guard, outcome: Settled | Replay | Refused, result: object, asking: _Asking) -> object:
    if not isinstance(outcome, Settled):
        return guard.answer(outcome, asking.since, listening=asking.listening, span=asking.span).value
    if asking.listening:
        took = guard.clock() - asking.since
        event = about("completed", outcome.record, waited=took, took=took)
        if asking.span is not None:
            asking.span.note(event)
            asking.span.end()
        guard.observers.tell(event)
    warn_of_missing(outcome.record)
    return result

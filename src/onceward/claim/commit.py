"""Claim, effect and completion in one write of the ledger."""

from onceward.claim.guard import Guard
from onceward.core import steps
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.steps import Refused, Replay, Settled
from onceward.observe.events import about
from onceward.results.outcomes import completion, warn_of_missing


def commit(guard: Guard, key: str, result: object, write: steps.Commit) -> object:
    """Make claim, effect and completion in one write. Return ``result``, or what was recorded before."""
    asked = _Asked(guard, key)
    return _committed(guard, drive(_committing(guard, asked, result, write), guard.store), result, asked)


async def commit_async(guard: Guard, key: str, result: object, write: steps.Commit) -> object:
    """Like :func:`commit`, for a coroutine."""
    asked = _Asked(guard, key)
    return _committed(guard, await drive_async(_committing(guard, asked, result, write), guard.store), result, asked)


class _Asked:
    """What is asked for, since when, and the span of that."""

    def __init__(self, guard: Guard, key: str) -> None:
        self.bid = guard.bid(key, None)
        self.since = guard.clock()
        self.told = guard.observers.are_listening()
        self.span = guard.observers.begin(guard.name, key) if self.told else None
        if self.span is not None:
            self.bid = self.span.on(self.bid)


def _committing(guard: Guard, asked: _Asked, result: object, write: steps.Commit) -> Steps[Settled | Replay | Refused]:
    effect = steps.Effect(completion(guard.codec, guard.policy, result), write)
    try:
        return (yield from steps.claim(guard.store, asked.bid, effect))
    except BaseException as error:
        if asked.span is not None:
            asked.span.end(error)
        raise


def _committed(guard: Guard, outcome: Settled | Replay | Refused, result: object, asked: _Asked) -> object:
    if not isinstance(outcome, Settled):
        return guard.answer(outcome, asked.since, told=asked.told, span=asked.span).value
    if asked.told:
        took = guard.clock() - asked.since
        event = about("completed", outcome.record, waited=took, took=took)
        if asked.span is not None:
            asked.span.note(event)
            asked.span.end()
        guard.observers.tell(event)
    warn_of_missing(outcome.record)
    return result

"""Claim, effect and completion in one write of the ledger."""

from onceward.claim.guard import Guard
from onceward.core import steps
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.steps import Refused, Replay, Settled
from onceward.observe.events import about
from onceward.results.outcomes import completion, warn_of_missing


def commit(guard: Guard, key: str, result: object, write: steps.Commit) -> object:
    """Make claim, effect and completion in one write. Return ``result``, or what was recorded before."""
    since = guard.clock()
    return _committed(guard, drive(_committing(guard, key, result, write), guard.store), result, since)


async def commit_async(guard: Guard, key: str, result: object, write: steps.Commit) -> object:
    """Like :func:`commit`, for a coroutine."""
    since = guard.clock()
    return _committed(guard, await drive_async(_committing(guard, key, result, write), guard.store), result, since)


def _committing(guard: Guard, key: str, result: object, write: steps.Commit) -> Steps[Settled | Replay | Refused]:
    effect = steps.Effect(completion(guard.codec, guard.policy, result), write)
    return steps.claim(guard.store, guard.bid(key, None), effect)


def _committed(guard: Guard, outcome: Settled | Replay | Refused, result: object, since: float) -> object:
    if not isinstance(outcome, Settled):
        return guard.answer(outcome, since, told=guard.observers.are_listening()).value
    if guard.observers.are_listening():
        guard.observers.tell(about("completed", outcome.record)._replace(waited=guard.clock() - since))
    warn_of_missing(outcome.record)
    return result

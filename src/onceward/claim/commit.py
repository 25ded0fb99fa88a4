"""Claim, effect and completion in one write of the ledger."""

from onceward.claim.guard import Guard
from onceward.core import steps
from onceward.core.drivers import drive, drive_async
from onceward.core.steps import Refused, Replay, Settled
from onceward.observe.events import about
from onceward.results.outcomes import completion, warn_of_missing


def commit(guard: Guard, key: str, result: object, write: steps.Commit) -> object:
    """Make claim, effect and completion in one write. Return ``result``, or what was recorded before."""
    since = guard.clock()
    effect = steps.Effect(completion(guard.codec, guard.policy, result), write)
    return _committed(guard, drive(steps.claim(guard.store, guard.bid(key, None), effect), guard.store), result, since)


async def commit_async(guard: Guard, key: str, result: object, write: steps.Commit) -> object:
    """As :func:`commit`, for a coroutine."""
    since = guard.clock()
    effect = steps.Effect(completion(guard.codec, guard.policy, result), write)
    outcome = await drive_async(steps.claim(guard.store, guard.bid(key, None), effect), guard.store)
    return _committed(guard, outcome, result, since)


def _committed(guard: Guard, outcome: Settled | Replay | Refused, result: object, since: float) -> object:
    if not isinstance(outcome, Settled):
        return guard.answer(outcome, since, told=guard.observers.are_listening()).value
    if guard.observers.are_listening():
        guard.observers.tell(about("completed", outcome.record)._replace(waited=guard.clock() - since))
    warn_of_missing(outcome.record)
    return result

"""Claim, effect and completion in one write of the ledger."""

from onceward.claim.guard import Guard
from onceward.core import steps
from onceward.core.drivers import Steps
from onceward.core.steps import Settled
from onceward.observe.events import about
from onceward.results.outcomes import completion, warn_of_missing


def commit(guard: Guard, key: str, result: object, write: steps.Commit) -> Steps[object]:
    """Make claim, effect and completion in one write. Return ``result``, or what was recorded before."""
    listening, since = guard.observers.are_listening(), guard.clock()
    bid = guard.bid(key, None)
    span = guard.observers.begin(guard.name, key) if listening else None
    if span is not None:
        bid = span.on(bid)
    try:
        effect = steps.Effect(completion(guard.codec, guard.policy, result), write)
        outcome = yield from steps.claim(guard.store, bid, effect)
    except BaseException as error:
        if span is not None:
            span.end(error)
        raise
    # No request follows: observers may use the ledger.
    if not isinstance(outcome, Settled):
        return guard.answer(outcome, since, listening=listening, span=span).value
    if listening:
        took = guard.clock() - since
        event = about("completed", outcome.record, waited=took, took=took)
        if span is not None:
            span.note(event)
            span.end()
        guard.observers.tell(event)
    warn_of_missing(outcome.record, 5)
    return result

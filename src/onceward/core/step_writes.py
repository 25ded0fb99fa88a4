"""The protocol's write of a claim's steps. See ``steps.py`` for the form of these generators."""

from collections.abc import Callable
from functools import partial

from onceward.core.belief import belief
from onceward.core.clock import Clock
from onceward.core.drivers import Steps
from onceward.core.policy import Policy
from onceward.core.protocol import is_mine
from onceward.core.record import Record
from onceward.core.register import Register
from onceward.core.retries import retry_transient
from onceward.core.steps import Lost, Won
from onceward.core.writes import with_steps


def write_steps(
    store: Register,
    record: Record,
    add: Callable[[str | None], str],
    policy: Policy,
    *,
    lease: Callable[[], float],
    clock: Clock,
    until: Callable[[], float],
) -> Steps[Won | Lost]:
    """Write the steps of a claim, and renew it for ``lease()`` seconds by the same write. Retries until ``until()``.

    Args:
        store: the register.
        record: the record as the claim last saw it.
        add: makes the new text of the record's ``steps`` from the current one. Adding twice must change nothing more.
        policy: the claim's.
        lease: returns for how long to renew.
        clock: the owner's.
        until: returns when to give up, on the owner's clock.
    """
    mine = record
    while True:
        if not is_mine(mine, record):  # it has ended meanwhile, and must not open again: its version is still current
            return Lost(mine)
        text, seconds, sent = add(mine.steps), lease(), clock()
        verb = partial(store.swap, with_steps(mine, text, seconds, policy), mine)
        try:
            reply = yield from verb()
        except Exception as error:
            reply = yield from retry_transient(verb, clock, until, error)
        held = reply.record
        if held is None or not is_mine(held, record):
            return Lost(held)
        if reply.won or add(held.steps) == held.steps:  # made now, or earlier with a lost reply
            return Won(held, belief(store, policy, sent, reply, held, lease=seconds))
        mine = held  # a heartbeat came in between

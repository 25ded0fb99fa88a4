"""A key that an open transaction holds is a busy one, but not when the claim itself may be that transaction."""

import pytest

from onceward import Busy, Once, StoreError
from onceward.core import many
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.register import KeyLocked
from onceward.core.steps import Bid, Refused
from onceward.stores.contract import OneByOne
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, at, fail_before


def test_a_locked_key_is_busy_and_its_handler_does_not_run():
    once = Once(Faults(MemoryStore(), lambda ask: fail_before(KeyLocked)), name="n")
    with pytest.raises(Busy):
        once.run("k", pytest.fail)


def test_a_locked_key_after_a_lost_reply_is_a_failure_of_the_ledger():
    lost = {1: fail_before(lambda text: StoreError(text, transient=True))}
    first = at(lost)
    store = Faults(MemoryStore(), lambda ask: first(ask) or fail_before(KeyLocked))
    with pytest.raises(StoreError) as raised:
        Once(store, name="n").run("k", pytest.fail)
    assert not isinstance(raised.value, Busy)
    assert isinstance(raised.value, KeyLocked)


class EachAlone(OneByOne, Faults):
    """Each key of a batch is an exchange of its own."""


def test_a_locked_key_of_a_batch_is_busy_unless_its_own_reply_was_lost():
    lost = at({1: fail_before(lambda text: StoreError(text, transient=True))})
    store = EachAlone(MemoryStore(), lambda ask: lost(ask) or fail_before(KeyLocked))
    bids = [Bid(key, "a", None, Policy(lease=0.4)) for key in ("lost", "locked")]
    doubtful, locked = drive(many.claim_many(store, bids), store)
    assert (type(doubtful), type(locked)) == (KeyLocked, Refused)

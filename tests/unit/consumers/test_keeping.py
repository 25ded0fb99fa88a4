"""A message is kept in the ledger though exchanges fail, its worker is killed, or an operator acts in between."""

import itertools

import pytest

from onceward import Once
from onceward.consumers.keeping import KeepOutcome, Place
from onceward.core.drivers import drive
from onceward.core.record import PARKED, RELEASED
from onceward.stores.contract import KeepsMessage
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, at, fail_after, fail_before, late, twice
from queues.kept import MESSAGE, TEXT, keeping, kept, parked, record_of
from tables import each


def keeps(ask):
    return any(write.status == PARKED and write.result is not None for write in ask.writes)


class Killed(SystemExit):
    """What a kill looks like from inside."""


PLACES = {
    "in its key's record": (Place("shop:a"), lambda once: parked(once, "a", None)),
    "again": (Place("shop:a"), lambda once: parked(once, "a")),
    "in a record of its own": (Place("shop.malformed:m-1", "KeyMissing: no id"), lambda once: None),
    "in a record of its own that was unparked": (
        Place("shop.malformed:m-1", "KeyMissing: no id"),
        lambda once: once.acquire("m-1", name="shop.malformed").release(),
    ),
}


@each(("place", "before"), PLACES.values())
@each("fault", [fail_before(), fail_after(), late(1), late(2), twice()])
def test_a_fault_at_any_exchange_is_got_over(place, before, fault):
    for number in itertools.count(1):
        once = Once(Faults(MemoryStore(), at({})), name="shop")
        before(once)
        store = once.store
        asked = len(store.asked)
        store.plan = at({asked + number: fault})
        assert drive(keeping(store, place, TEXT), store) is KeepOutcome.KEPT
        done, store.plan = len(store.asked) - asked, at({})
        assert kept(once, place.key).body == MESSAGE.body
        if done < number:
            assert done == 2, "one look and one write, without a fault"
            return


@each(("place", "before"), PLACES.values())
@each("fault", [fail_before(Killed), fail_after(Killed), late(1, Killed)])
def test_killed_at_any_exchange_the_message_is_kept_when_it_comes_again(place, before, fault):
    for number in itertools.count(1):
        once = Once(Faults(MemoryStore(), at({})), name="shop")
        before(once)
        store = once.store
        store.plan = at({len(store.asked) + number: fault})
        try:
            drive(keeping(store, place, TEXT), store)
        except Killed:
            pass  # the message is not deleted, for nobody has seen that it is kept
        else:
            assert number == 3
            return
        store.plan = at({})
        assert drive(keeping(store, place, TEXT), store) is KeepOutcome.KEPT
        assert kept(once, place.key).body == MESSAGE.body


def test_a_key_unparked_in_between_lets_its_message_stay_in_the_queue():
    once = Once(Faults(MemoryStore(), at({})), name="shop")
    key = parked(once, "a", None)
    store = once.store
    done = []

    def plan(ask):
        if ask.verb == "swap" and keeps(ask) and not done:
            done.append(ask)
            Once(store.store).ledger.unpark(key)

    store.plan = plan
    assert drive(keeping(store, Place(key), TEXT), store) is KeepOutcome.LET_GO
    assert (record_of(once, key).status, record_of(once, key).result) == (RELEASED, None)


def test_a_message_kept_while_the_key_is_being_cleared_is_not_lost():
    once = Once(Faults(MemoryStore(), at({})), name="shop")
    key = parked(once, "a", None)
    store = once.store

    def plan(ask):
        if ask.verb == "delete" and not store.store.records[key].result:
            drive(keeping(store.store, Place(key), TEXT), store.store)

    store.plan = plan
    with pytest.raises(KeepsMessage):
        once.ledger.clear(key)
    assert kept(once, key).body == MESSAGE.body
    assert once.ledger.clear(key, message=True).result == TEXT

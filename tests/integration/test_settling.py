"""Keys that a person completes, on every ledger."""

import pytest

from onceward import Completed, LeaseLost, Once, OncewardError
from onceward.core import protocol
from onceward.core.drivers import drive
from onceward.stores.contract import KeepsMessage
from waiting import until


@pytest.fixture
def once(ledger):
    with_ledger = Once(ledger.url, name="shop")
    yield with_ledger
    with_ledger.close()


def test_a_lapsed_key_is_settled_and_its_zombie_is_refused(once):
    zombie = once.acquire("k", lease=3, heartbeat=0)
    until(lambda: not once.ledger.is_live("shop:k"))
    record = once.ledger.settle("shop:k", "by hand")
    with pytest.raises(LeaseLost):
        zombie.complete("mine")
    with pytest.raises(Completed) as done:
        once.acquire("k")
    assert done.value.result == "by hand"
    assert once.ledger.show("shop:k")[0] == record
    assert [(one.outcome, one.worker == "by hand") for one in once.ledger.attempts("shop:k")] == [
        ("LAPSED", False),
        ("COMPLETED", True),
    ]
    with pytest.raises(OncewardError, match="it is COMPLETED"):
        once.ledger.settle("shop:k", "twice")


def test_a_kept_message_is_lost_only_when_asked(once):
    once.acquire("k").park("why")
    record, _ = once.ledger.show("shop:k")
    drive(once.store.swap(protocol.keeping(record, "a message"), record), once.store)
    with pytest.raises(KeepsMessage):
        once.ledger.settle("shop:k", 1)
    assert once.ledger.settle("shop:k", 1, message=True).result == "1"

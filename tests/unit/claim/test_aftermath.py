"""What the ledger's answer means for a transaction whose COMMIT has lost its reply."""

import pytest

from onceward import Once
from onceward.claim.aftermath import OfClaim
from onceward.claim.step_transaction import OfStep
from onceward.core import steps
from onceward.core.drivers import drive
from onceward.core.protocol import completed, last_write
from onceward.core.record import COMPLETED, IN_PROGRESS
from onceward.errors import StoreError
from tables import each

LOST = StoreError("the reply to the COMMIT was lost", transient=True)


def drive_apart(generator, store):
    try:
        request = next(generator)
        while True:
            request = generator.send(store.exchange(request.request))
    except StopIteration as end:
        return end.value


@pytest.fixture
def claim(once):
    """A claim whose transaction has renewed it and completed it, as far as its connection knows."""
    claim = once.acquire("k")
    before = claim.record
    claim.transacted = OfClaim(claim, before)
    claim.record = (
        last_write(before, completed("1"), claim.policy)._replace(beat=before.beat + 2**39).at(0.0)
    )  # it leaps
    return claim


def test_a_completion_in_the_ledger_was_committed_also_if_a_relay_has_struck_out_its_messages(once, claim):
    once.store.records[claim.record.key] = done = claim.record._replace(lease_until=5.0, updated_at=5.0)
    assert drive_apart(claim.transacted.was_committed(LOST), once.store) is True
    assert claim.record == done
    once.store.records[claim.record.key] = claim.record._replace(beat=claim.record.beat + 3)
    assert drive_apart(claim.transacted.was_committed(LOST), once.store) is True


@pytest.mark.parametrize("renewals", [0, 1, 2, 3])
def test_renewals_whose_replies_were_lost_are_no_commit(once, claim, renewals):
    for _ in range(renewals):  # of the question itself
        held = once.store.records[claim.record.key]
        drive(steps.heartbeat(once.store, [(held, 60.0)], [claim.policy], claim.clock), once.store)
    assert drive_apart(claim.transacted.was_committed(LOST), once.store) is False
    assert (claim.record.status, once.store.records[claim.record.key].status) == (IN_PROGRESS, IN_PROGRESS)
    claim.complete(2)
    assert once.store.records[claim.record.key].status == COMPLETED


@each("of", [OfClaim, OfStep])
def test_an_interrupt_leaves_nothing_that_was_not_committed(of):
    once = Once("memory:", name="n", lease=60)
    with pytest.raises(ZeroDivisionError), once.claim("k") as claim:
        before = claim.record
        after = OfClaim(claim, before) if of is OfClaim else OfStep(claim, claim._chained(), "pay")
        claim.record = before._replace(beat=before.beat + 1, steps='[{"name":"pay"}]')  # as it would be committed
        asked = after.was_committed(StoreError("the reply was lost"))
        next(asked)
        with pytest.raises(KeyboardInterrupt):
            asked.throw(KeyboardInterrupt)
        assert claim.record == before
        raise ZeroDivisionError
    assert [record.steps for record, _ in once.ledger.records()] == [None]
    once.close()

"""Each claim carries the name of its worker, and who meets it is told."""

import os
from types import SimpleNamespace

import pytest

from onceward import Busy, Once, Parked
from onceward.aws import on_invoke
from onceward.stores.memory import MemoryStore

HERE = f"{os.uname().nodename}/{os.getpid()}"


@pytest.fixture
def once(clock):
    return Once(MemoryStore(clock), name="n", clock=clock)


def stands(once):
    return once.ledger.show("n:k")[0]


def test_a_record_has_host_and_process_of_its_claim_and_its_last_write(once, clock):
    claim = once.acquire("k")
    for act in (claim.extend, claim.complete):
        clock.advance(5)
        act()
        assert (stands(once).worker, stands(once).updated_at) == (HERE, clock())
    assert stands(once).created_at == clock() - 10


def test_busy_and_parked_name_the_worker(once):
    claim = once.acquire("k")
    with pytest.raises(Busy, match=rf"another worker \({HERE}\) holds this key") as busy:
        once.acquire("k")
    claim.park("no")
    with pytest.raises(Parked, match=f"the last by {HERE}") as parked:
        once.acquire("k")
    assert busy.value.worker == parked.value.worker == HERE


def test_on_lambda_the_worker_is_the_function_and_its_request(once):
    async def charge(order):
        return 1

    context = SimpleNamespace(aws_request_id="5f1c", function_name="charge")
    assert on_invoke(once, key="order.id")(charge)({"id": "k"}, context) == 1
    assert stands(once).worker == "charge/5f1c"
    once.acquire("l")
    assert once.ledger.show("n:l")[0].worker == HERE

"""The Date header of DynamoDB's answers: missing, of a machine in between, or another than before, and requests that it makes sign again."""

import time

import pytest

from onceward import Busy, Once, StoreError
from onceward.core.drivers import drive
from onceward.stores import open_store
from onceward.stores.dynamodb import open_table
from onceward.testing.bench import claim_of
from onceward.testing.clock import ManualClock
from onceward.wire.calls import ObjectCall, ServiceAnswer


def test_without_a_date_in_the_answers_nothing_runs(url, proxy):
    proxy.dateless = True
    entered = []
    with pytest.raises(StoreError, match="Date header"):
        Once(url).using(name="n").run("k", entered.append, 1)
    assert entered == []
    assert "PutItem" not in proxy.actions


def test_one_answer_without_a_date_changes_nothing(url, proxy):
    once = Once(url)
    once.acquire("warm")
    proxy.dateless = True
    assert once.acquire("k").remaining == pytest.approx(60, abs=3)
    with pytest.raises(Busy):
        once.acquire("k")


@pytest.mark.parametrize("off", [-3600, 3600])
def test_the_first_request_is_signed_again_with_the_servers_time(url, proxy, off):
    proxy.date = lambda: time.time() + off
    proxy.tolerance = 300
    once = Once(url)
    assert once.using(name="n").run("k", lambda: 1) == 1
    assert proxy.actions == ["GetItem", "GetItem", "PutItem", "UpdateItem"]
    assert once.using(name="n").run("k", lambda: 2) == 1
    assert len(proxy.actions) == 5


def test_every_request_of_a_frozen_processs_batch_is_signed_again(proxy, table, dynoxide):
    clock = ManualClock()
    missed = 0.0
    proxy.date = lambda: clock() + missed
    proxy.tolerance = 300
    store = open_table(table, endpoint=proxy.url, clock=clock)
    drive(store.load("warm"), store)
    proxy.seen.clear()
    missed = -3600.0
    replies = drive(store.insert_many([claim_of(f"k{n}", "a") for n in range(60)]), store)
    assert [reply.won for reply in replies] == [True] * 60
    # Refused, and stamped and signed anew with the server's own time.
    assert max(abs(reply.record.lease_until - clock() - missed - 60) for reply in replies) < 3
    assert proxy.actions == ["BatchExecuteStatement"] * 6
    assert len(dynoxide.items(table)) == 60


@pytest.fixture
def stands(table, dynoxide):
    """Returns when the lease of the claim on "k" ends, as it stands in the table."""

    def read():
        (item,) = [item for item in dynoxide.items(table) if item["key"]["S"].endswith(":k")]
        return float(item["lease_until"]["N"])

    return read


@pytest.mark.parametrize("off", [-3600, -30])
def test_a_renewal_never_lowers_a_lease_though_server_shows_another_time(url, proxy, stands, off):
    once = Once(url)
    claim = once.acquire("k")
    before, left = stands(), claim.remaining
    proxy.date = lambda: time.time() + off
    for _ in range(3):
        claim.extend()
    assert stands() >= before
    assert claim.remaining <= max(left, 60), "nor is it believed in for longer than was asked for"
    proxy.date = None
    with pytest.raises(Busy):
        Once(url).acquire("k")
    claim.complete()


def test_a_frozen_process_asks_before_it_stamps(url, proxy, monkeypatch):
    once = Once(url)
    once.run("warm", int)
    proxy.seen.clear()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    once.run("k", int)
    assert proxy.actions == ["GetItem", "PutItem", "UpdateItem"]


def test_the_clock_of_s3_is_not_the_ledgers(url):
    store = open_store(url)
    drive(store.load("k"), store)
    before = store.clock.earliest()
    steps = store.learn_from(ObjectCall("GET", "b", "k"), ServiceAnswer(200, b"", before + 7200, 0.0, 0.0))
    with pytest.raises(StopIteration):
        next(steps)
    assert store.clock.earliest() == pytest.approx(before, abs=1)

"""Rare ways to be wrong about DynamoDB, each of which was shown to run an effect twice, to lose a lease or to mislead."""

import asyncio
import time

import pytest

from onceward import Once, StoreError
from onceward.core.drivers import drive
from onceward.stores import open_store
from onceward.stores.dynamodb import open_table
from onceward.testing.bench import claim_of
from onceward.testing.clock import ManualClock
from onceward.wire.calls import Answer, ObjectCall
from onceward.wire.clock import ServerClock
from servers import Fault, Refuse


@pytest.fixture
def money(dynoxide):
    return dynoxide.table(f"money-{time.time_ns()}", {"id": "S"})


def adding(money):
    return {
        "Update": {
            "TableName": money,
            "Key": {"id": {"S": "alice"}},
            "UpdateExpression": "ADD n :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
    }


def balance(dynoxide, money):
    return sum(int(item["n"]["N"]) for item in dynoxide.items(money))


# --- machines that were frozen ------------------------------------------------------------------------------------


def test_a_transaction_after_two_hours_of_being_frozen_is_stamped_with_the_servers_time(dynoxide, proxy, table, money):
    clock = ManualClock()
    missed = 0.0
    proxy.date = lambda: clock() + missed
    proxy.tolerance = 300
    once = Once(open_table(table, endpoint=proxy.url, clock=clock), clock=clock, retention=3600)
    once.acquire("warm")
    missed = 7200.0
    assert once.transact("k", [adding(money)], 1) == 1
    other = Once(open_table(table, endpoint=proxy.url, clock=lambda: clock() + missed), retention=3600)
    assert other.transact("k", [adding(money)], 2) == 1, "the record has not expired"
    assert balance(dynoxide, money) == 1


def test_a_batch_after_two_hours_of_being_frozen_is_stamped_with_the_servers_time(dynoxide, proxy, table):
    clock = ManualClock()
    missed = 0.0
    proxy.date = lambda: clock() + missed
    proxy.tolerance = 300
    store = open_table(table, endpoint=proxy.url, clock=clock)
    drive(store.load("warm"), store)
    missed = 7200.0
    for reply in drive(store.insert_many([claim_of(f"k{n}", "a") for n in range(3)]), store):
        assert reply.record.lease_until == pytest.approx(clock() + missed + 60, abs=3)


def test_the_servers_time_is_asked_anew_when_the_machines_own_clocks_part(monkeypatch):
    from onceward.core.clock import boottime

    clock = ServerClock(boottime)
    assert not clock.known
    now = boottime()
    clock.learn(Answer(200, {}, 1e9, now, now))
    assert clock.known
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)  # as after a snapshot was restored
    assert not clock.known
    clock.learn(Answer(200, {}, 1e9 + 3600, now, now))
    assert clock.known
    assert clock.earliest() == pytest.approx(1e9 + 3600, abs=1)


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
    steps = store.heard(ObjectCall("GET", "b", "k"), Answer(200, b"", before + 7200, 0.0, 0.0))
    with pytest.raises(StopIteration):
        next(steps)
    assert store.clock.earliest() == pytest.approx(before, abs=1)


# --- transactions -------------------------------------------------------------------------------------------------


def test_a_conflict_on_the_record_is_not_taken_for_a_refused_effect(url, proxy, money, dynoxide):
    once = Once(url)
    once.transact("warm", [])
    first = len(proxy.seen)

    def rule(seen):
        if seen.number == first:
            reasons = [{"Code": "TransactionConflict"}, {"Code": "ConditionalCheckFailed"}]
            return Refuse("TransactionCanceledException", more={"CancellationReasons": reasons})
        return None

    proxy.rule = rule
    assert once.transact("k", [adding(money)], 1) == 1
    assert balance(dynoxide, money) == 1


def test_a_cancellation_without_reasons_is_an_error_like_any_other(url, proxy, money):
    once = Once(url)
    proxy.rule = lambda seen: Refuse("TransactionCanceledException") if seen.action == "TransactWriteItems" else None
    with pytest.raises(StoreError, match="TransactionCanceled"):
        once.transact("k", [adding(money)], 1)


def test_a_lost_reply_of_a_transaction_whose_result_is_not_stored_is_no_error(url, proxy):
    once = Once(url, max_result=1)
    with pytest.warns(UserWarning, match="max_result"):
        once.transact("warm", [], "long")
    first = len(proxy.seen)
    proxy.rule = lambda seen: Fault(lose_reply=True) if seen.number == first else None
    with pytest.warns(UserWarning, match="max_result"):
        assert once.transact("k", [], "long") == "long"


def test_a_write_to_the_record_itself_is_refused_before_anything_is_sent(url, proxy, table):
    once = Once(url)
    once.transact("warm", [])
    sent = len(proxy.seen)
    with pytest.raises(ValueError, match="very item"):
        once.transact("k", [{"Delete": {"TableName": table, "Key": {"key": {"S": "claim:k"}}}}])
    assert len(proxy.seen) == sent


def test_the_advice_of_an_error_is_not_about_another_table(url, proxy, money):
    once = Once(url)
    proxy.rule = lambda seen: Refuse(
        "AccessDeniedException", message="not authorized to perform dynamodb:UpdateItem on X"
    )
    with pytest.raises(StoreError, match="UpdateItem on X") as caught:
        once.transact("k", [adding(money)], 1)
    assert "allow dynamodb:TransactWriteItems" not in str(caught.value)


def test_a_cancelled_transaction_takes_effect_once_however_it_ends(url, money, dynoxide, proxy):
    async def main():
        once = Once(url)
        await once.transact_async("warm", [])
        proxy.rule = lambda seen: Fault(delay=0.05)
        task = asyncio.ensure_future(once.transact_async("k", [adding(money)], 1))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.2)
        proxy.rule = lambda seen: None
        assert await once.transact_async("k", [adding(money)], 2) in {1, 2}
        once.close()

    asyncio.run(main())
    assert balance(dynoxide, money) == 1


# --- answers that tell too little ---------------------------------------------------------------------------------


def without_item(body):
    return {name: value for name, value in body.items() if name != "Item"}


def test_a_server_that_does_not_show_what_it_holds_is_asked_for_it(url, proxy):
    once = Once(url)
    once.run("k", int)
    proxy.seen.clear()
    proxy.rule = lambda seen: Fault(edit_reply=without_item) if seen.action == "PutItem" else None
    assert once.run("k", int) == 0
    assert proxy.actions == ["PutItem", "GetItem"]


def test_a_claim_whose_try_took_longer_than_its_patience_is_tried_once_more(proxy, table):
    once = Once(open_table(table, endpoint=proxy.url, timeout=2.5))
    once.run("warm", int)
    first = len(proxy.seen)
    proxy.rule = lambda seen: Fault(delay_reply=4.0) if seen.number == first else None
    assert once.run("k", int) == 0


def test_a_request_timeout_of_the_server_is_tried_again(url, proxy):
    once = Once(url)
    once.run("warm", int)
    first = len(proxy.seen)
    proxy.rule = lambda seen: Refuse("RequestTimeout", 408) if seen.number == first else None
    assert once.run("k", int) == 0


def test_a_session_token_is_in_no_error(url, proxy):
    once = Once(url)
    text = "The Canonical String should have been 'POST\\n/\\nx-amz-security-token:FwoGZXIvYXdzEXAMPLE\\n'"
    proxy.rule = lambda seen: Refuse("InvalidSignatureException", message=text)
    with pytest.raises(StoreError) as caught:
        once.run("k", int)
    assert "FwoGZXIvYXdzEXAMPLE" not in str(caught.value)


# --- fences -------------------------------------------------------------------------------------------------------


def test_a_fence_grows_across_a_clear_although_another_process_claims_next(url):
    fences = []
    for _ in range(3):
        mine = Once(url)
        claim = mine.acquire("k")
        fences.append(claim.fence)
        mine.ledger.clear(claim.record.key, live=True)
        mine.close()
    assert fences == sorted(set(fences))


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", 't"; DROP', "t%20x", "ta\u00efble"])
def test_what_cannot_be_the_name_of_a_table_is_refused_when_it_is_opened(name, proxy):
    with pytest.raises(ValueError, match="not the name of a table"):
        Once(f"dynamodb://{name}?endpoint={proxy.url}")
    assert proxy.actions == []


def test_a_key_that_is_too_long_for_dynamodb_is_told_as_such(url):
    with pytest.raises(StoreError, match="shorter name"):
        Once(url).transact("k", [], name="n" * 3000)


@pytest.mark.parametrize("write", [{"Delete": {"TableName": "t", "Key": 5}}, {"Put": {"TableName": "t"}}])
def test_a_write_without_its_key_or_item_is_refused_before_anything_is_sent(url, proxy, write):
    with pytest.raises(TypeError, match="typed values"):
        Once(url).transact("k", [write])
    assert proxy.actions == []


def test_a_write_that_is_too_large_is_not_blamed_on_the_result(url, money):
    large = {"Put": {"TableName": money, "Item": {"id": {"S": "z"}, "b": {"S": "x" * 500_000}}}}
    with pytest.raises(StoreError, match="size") as caught:
        Once(url).transact("k", [large])
    assert "max_result" not in str(caught.value)


@pytest.mark.parametrize("key", ["\ud800", "a\0b", "k" * 5000, b"\xff", 5])
def test_a_key_of_any_text_or_bytes_is_a_key(url, key):
    once = Once(url)
    assert once.transact(key, [], 1) == once.transact(key, [], 2) == 1

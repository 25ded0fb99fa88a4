"""Whatever happens to whichever request of a case: the effect is made once, the caller is told the truth, and the record is right."""

import asyncio
import math

import pytest

from onceward import Once, StoreError
from onceward.core import retries
from onceward.core.drivers import drive
from onceward.testing.bench import claim_of
from servers.proxy import Fault, Refuse
from stores.dynamodb_desk import (
    CASES,
    LEASE,
    Bench,
    Desk,
    claim_many,
    each_has_one_owner,
    keys,
    some_taken,
    transact,
    transact_in_claim,
)

pytestmark = pytest.mark.sampled(mode=1, gone=1)

FAULTS = {
    "the request is lost": Fault(lose_request=True),
    "the reply is lost": Fault(lose_reply=True),
    "the connection breaks amid the reply": Fault(reset_reply=True),
    "500": Refuse("InternalServerError", 500),
    "throttled": Refuse("ProvisionedThroughputExceededException"),
    "it arrives twice": Fault(twice=True),
    "it arrives late, before the next": Fault(late=1),
    "it arrives late, before the next but one": Fault(late=2),
    "it arrives after all the others": Fault(late=1000),
}
AGAIN = {"the request is lost", "the reply is lost", "the connection breaks amid the reply"}


@pytest.fixture
def bench(proxy, dynoxide, table):
    made = Bench(proxy, dynoxide, table)
    yield made
    for once in [*made.onces.values(), made.other]:
        made.loop.call_soon(once.close)
    made.loop.run_until_complete(asyncio.sleep(0))
    made.loop.close()


def sent(bench, case, mode) -> int:
    """Return how many requests a case sends when nothing goes wrong."""
    desk = Desk(bench, mode)
    given = case.before(desk)
    before = len(bench.proxy.seen)
    value = case.act(desk, given)
    count = len(bench.proxy.seen) - before
    case.after(desk, value)
    return count


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", CASES)
def test_any_fault_of_any_request_changes_nothing_for_caller_or_record(bench, name, mode):
    case, proxy = CASES[name], bench.proxy
    for number in range(sent(bench, case, mode)):
        for what, fault in FAULTS.items():
            for times in (1, 2) if what in AGAIN else (1,):  # one lost connection is opened again by the wire alone
                desk = Desk(bench, mode)
                given = case.before(desk)
                start = len(proxy.seen) + number
                proxy.rule = lambda seen, these=range(start, start + times), fault=fault: (
                    fault if seen.number in these else None
                )
                try:
                    value = case.act(desk, given)
                    proxy.rule = lambda seen: None
                    case.after(desk, value)
                    left = desk.left_behind()
                    proxy.deliver()
                    assert desk.left_behind() == left, "a request that came when all was over changed something"
                except Exception as error:
                    error.add_note(f"{what}, {times} times, at request {number} of {name}")
                    raise


def away(bench, kind, from_number):
    """From this request on nothing gets through, or everything does and no reply comes back; meanwhile time goes by."""

    def rule(seen):
        if seen.number < from_number:
            return None
        bench.clock.advance(2.0)
        return kind

    bench.proxy.rule = rule


GONE = {
    "nothing gets through": Fault(lose_request=True),
    "no reply comes back": Fault(lose_reply=True),
    "500": Refuse("InternalServerError", 500),
}


@pytest.fixture(params=list(GONE))
def gone(request):
    return GONE[request.param]


@pytest.fixture(params=["sync", "async"])
def mode(request):
    return request.param


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Pauses between tries are short in real time; what ends the tries is the clock that the test moves."""
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.02)


def back(bench):
    bench.proxy.rule = lambda seen: None


@pytest.mark.parametrize("held", [False, True], ids=["once", "claim"])
def test_without_the_store_transaction_fails_and_later_truth_is_found_out(bench, gone, mode, held):
    desk = Desk(bench, mode)
    claim = desk.acquire() if held else None
    away(bench, gone, len(bench.proxy.seen))
    with pytest.raises(StoreError):
        transact_in_claim(desk, claim) if held else transact(desk, None)
    back(bench)
    if held:
        bench.clock.advance(LEASE)
    answer = desk.do(desk.once, "transact", desk.key, [desk.effect()], "second", name="n")
    assert answer == ("paid" if gone == GONE["no reply comes back"] else "second")
    assert desk.spent() == 1


PASSING = ["ThrottlingError", "ProvisionedThroughputExceeded", "InternalServerError", "TransactionConflict"]
OTHER = ["RequestLimitExceeded", "ValidationError", "ResourceNotFound", "ItemCollectionSizeLimitExceeded"]


def failing_member(index: int, code: str, *, made: bool) -> Fault:
    """One statement of a batch is answered with an error, although it was made, or because it was not."""

    def drop(body):
        return {**body, "Statements": [s for n, s in enumerate(body["Statements"]) if n != index]}

    def tell(answer):
        responses = list(answer["Responses"])
        if made:
            responses[index] = {}
        else:
            responses.insert(index, {})
        responses[index] = {"Error": {"Code": code, "Message": "refused by the test"}, "TableName": "t"}
        return {**answer, "Responses": responses}

    return Fault(edit_request=None if made else drop, edit_reply=tell)


@pytest.mark.parametrize("made", [False, True], ids=["not-made", "made"])
def test_a_member_of_a_batch_that_fails_is_written_alone(bench, mode, made):
    for code in PASSING + OTHER:
        desk = Desk(bench, mode)
        some_taken(desk)
        first_batch = len(bench.proxy.seen)
        fault = failing_member(4, code, made=made)
        bench.proxy.rule = lambda seen, fault=fault: fault if len(seen.body.get("Statements", ())) == 25 else None
        each_has_one_owner(desk, claim_many(desk, None))
        assert bench.proxy.actions[first_batch:].count("PutItem") == 1
        back(bench)


@pytest.mark.parametrize("count", [2, 25, 26, 100, 101, 130])
def test_batches_of_any_size_are_made_whole(bench, mode, count):
    desk = Desk(bench, mode)
    store, mine = desk.other.store, f"mine{desk.key}"
    taken = drive(store.insert_many([claim_of(f"n:{key}", "theirs") for key in keys(desk, count)[::2]]), store)
    assert all(reply.won for reply in taken)
    bench.proxy.seen.clear()
    replies = desk.drive(lambda store: store.insert_many([claim_of(f"n:{k}", mine) for k in keys(desk, count)]))
    assert [reply.won for reply in replies] == [bool(n % 2) for n in range(count)]
    assert [reply.record.key for reply in replies] == [f"n:{key}" for key in keys(desk, count)]
    assert [reply.record.owner for reply in replies] == [mine if n % 2 else "theirs" for n in range(count)]
    assert sorted(bench.proxy.actions) == ["BatchExecuteStatement"] * (math.ceil(count / 25) + math.ceil(count / 50))


def test_a_server_that_does_not_show_what_it_holds_is_asked_for_it(url, proxy):
    once = Once(url)
    once.run("k", int)
    proxy.seen.clear()
    without_item = lambda body: {name: value for name, value in body.items() if name != "Item"}
    proxy.rule = lambda seen: Fault(edit_reply=without_item) if seen.action == "PutItem" else None
    assert once.run("k", int) == 0
    assert proxy.actions == ["PutItem", "GetItem"]

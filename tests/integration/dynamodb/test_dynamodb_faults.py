"""Whatever happens to whichever request: the effect is made once, the caller is told the truth, and the record is right.

Every case below is run once without a fault, which tells how many requests it sends, and then again and again, with each
fault at each of its requests, and with the store away for good from each of its requests on.
"""

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest

from onceward import Completed, LeaseLost, Once, Parked, ResultNotRecorded, StoreError
from onceward.core import many, retries, steps
from onceward.core.drivers import drive, drive_async
from onceward.core.policy import Policy
from onceward.core.protocol import completed
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.core.steps import Lost, Settled
from onceward.stores.dynamodb import open_table
from onceward.testing.bench import claim_of
from onceward.testing.clock import ManualClock
from servers.needs import numbers
from servers.proxy import Fault, Refuse

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
NUMBERS = numbers()
LEASE = 10.0
MEMBERS = 27  # of a batch, of which every ninth is somebody else's; a request takes 25


class Desk:
    """One worker on a fresh key, sync or async, and the means to look at what it left behind."""

    def __init__(self, bench, mode: str) -> None:
        self.mode, self.proxy, self.clock, self.money = mode, bench.proxy, bench.clock, bench.money
        self.server, self.table, self.other = bench.server, bench.table, bench.other
        self.once, self._loop = bench.onces[mode], bench.loop
        self.key = f"k{next(NUMBERS)}"
        self.runs = 0

    # --- what it does, in either mode -----------------------------------------------------------------------------

    def run(self, function, *args):
        """Guard a handler; in async mode it is a coroutine function."""
        once = self.once.using(name="n")
        if self.mode == "sync":
            return once.run(self.key, function, *args)

        async def handler(*args):
            return function(*args)

        return self._loop.run_until_complete(once.run_async(self.key, handler, *args))

    def do(self, thing, verb: str, *args, **options):
        """Call ``verb``, or in async mode await its other form."""
        if self.mode == "sync":
            return getattr(thing, verb)(*args, **options)
        return self._loop.run_until_complete(getattr(thing, f"{verb}_async")(*args, **options))

    def drive(self, of: Callable):
        """Drive the steps that ``of(store)`` makes, as often as it takes."""
        store = self.once.store

        def persistent():
            sent = self.clock()
            try:
                return (yield from of(store))
            except StoreError as error:
                return (yield from retries.retry_transient(lambda: of(store), self.clock, lambda: sent + 5, error))

        if self.mode == "sync":
            return drive(persistent(), store)
        return self._loop.run_until_complete(drive_async(persistent(), store))

    def acquire(self, once=None, **options):
        return self.do(self.once if once is None else once, "acquire", self.key, name="n", **options)

    def handler(self):
        self.runs += 1
        return {"run": self.runs}

    # --- what is left ---------------------------------------------------------------------------------------------

    def record(self, key: str | None = None):
        got = self.server.ask("GetItem", TableName=self.table, Key={"key": {"S": f"n:{key or self.key}"}})
        return self.other.store.layout.record(got["Item"]) if "Item" in got else None

    def spent(self) -> int:
        got = self.server.ask("GetItem", TableName=self.money, Key={"id": {"S": self.key}})
        return int(got["Item"]["n"]["N"]) if "Item" in got else 0

    def effect(self):
        return {
            "Update": {
                "TableName": self.money,
                "Key": {"id": {"S": self.key}},
                "UpdateExpression": "ADD n :one",
                "ExpressionAttributeValues": {":one": {"N": "1"}},
            }
        }

    def records(self):
        """Return all records of this desk's key, or of a batch's, by their keys."""
        names = [self.key, *keys(self)]
        wanted = {self.table: {"Keys": [{"key": {"S": f"n:{name}"}} for name in names]}}
        found = self.server.ask("BatchGetItem", RequestItems=wanted)["Responses"][self.table]
        records = map(self.other.store.layout.record, found)
        return {record.key.removeprefix("n:"): record for record in records}

    def left_behind(self):
        return self.records(), self.spent()

    def stands(self, status, *, attempts=1, result=None):
        held = self.record()
        assert (held.status, held.attempts, held.result) == (status, attempts, result)
        return held

    def answers(self, value):
        """A duplicate of somebody else gets the recorded result."""
        with pytest.raises(Completed) as caught:
            self.other.acquire(self.key, name="n")
        assert caught.value.result == value


class Bench:
    """One server, one ledger, one clock that all share, and the loop of the async worker."""

    def __init__(self, proxy, server, table) -> None:
        self.proxy, self.server, self.table = proxy, server, table
        self.clock = ManualClock()
        proxy.date = self.clock
        self.money = server.table(f"money-of-{table}", {"id": "S"})
        self.loop = asyncio.new_event_loop()
        self.onces = {mode: self.opened(proxy.url) for mode in ("sync", "async")}
        self.onces["sync"].acquire("warm")  # it has seen an answer
        self.loop.run_until_complete(self.onces["async"].acquire_async("warm too"))
        self.other = self.opened(proxy.url)

    def opened(self, url):
        return Once(open_table(self.table, endpoint=url, clock=self.clock), clock=self.clock, lease=LEASE)


@pytest.fixture
def bench(proxy, dynoxide, table):
    made = Bench(proxy, dynoxide, table)
    yield made
    for once in [*made.onces.values(), made.other]:
        made.loop.call_soon(once.close)
    made.loop.run_until_complete(asyncio.sleep(0))
    made.loop.close()


# --- the cases ----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """What is there before; what is done under faults; and what must be true when it went well."""

    before: Callable[[Desk], object]
    act: Callable[[Desk, object], object]
    after: Callable[[Desk, object], None]


def first(desk):
    return None


def run(desk, _):
    return desk.run(desk.handler)


def ran_once(desk, value):
    assert value == {"run": 1}
    assert desk.runs == 1
    desk.stands(COMPLETED, result='{"run":1}')
    desk.answers({"run": 1})


def replayed(desk, value):
    assert value == {"run": 1}
    assert desk.runs == 1, "the duplicate ran"
    desk.stands(COMPLETED, result='{"run":1}')


def lapsed(desk):
    desk.other.acquire(desk.key, name="n")
    fence = desk.record().fence
    desk.clock.advance(LEASE + 3)
    return fence


def taken_over(desk, _):
    assert desk.runs == 1
    desk.stands(COMPLETED, attempts=2, result='{"run":1}')
    desk.answers({"run": 1})


class Declined(Exception):
    pass


def failing(desk, _):
    def handler():
        desk.runs += 1
        raise Declined("card")

    with pytest.raises(Declined, match="card"):
        desk.run(handler)


def gave_back(desk, _):
    assert desk.runs == 1
    assert desk.stands(RELEASED).error.endswith("Declined: card")


def held(desk):
    return desk.acquire()


def extend(desk, claim):
    desk.do(claim, "extend")
    return claim


def extended(desk, claim):
    stands = desk.stands(IN_PROGRESS)
    assert not claim.lost
    assert claim.remaining <= stands.lease_until - desk.clock()
    desk.do(claim, "complete", 5)
    desk.stands(COMPLETED, result="5")


def ended(verb, *args):
    def act(desk, claim):
        return desk.do(claim, verb, *args)

    return act


def is_left(status, result=None, error=None):
    def after(desk, _):
        assert desk.stands(status, result=result).error == error

    return after


def last_attempt(desk):
    desk.acquire().release("no luck")


def refused_for_good(desk, _):
    with pytest.raises(Parked, match="no luck"):
        desk.acquire(max_attempts=1)


def paid(desk, value):
    assert value == "paid"
    assert desk.spent() == 1
    assert desk.record().status == COMPLETED
    assert desk.do(desk.once, "transact", desk.key, [desk.effect()], "again", name="n") == "paid"
    assert desk.spent() == 1


def transact(desk, _):
    return desk.do(desk.once, "transact", desk.key, [desk.effect()], "paid", name="n")


def transact_in_claim(desk, claim):
    return desk.do(claim, "transact", [desk.effect()], "paid")


def keys(desk, count=MEMBERS):
    return [f"{desk.key}-{n}" for n in range(count)]


def some_taken(desk):
    drive(desk.other.store.insert_many([claim_of(f"n:{key}", "theirs") for key in keys(desk)[::9]]), desk.other.store)


def claim_many(desk, _):
    writes = [claim_of(f"n:{key}", f"mine{desk.key}") for key in keys(desk)]
    return desk.drive(lambda store: until_answered(store, writes))


def until_answered(store, writes):
    """Ask a few times for those that fail for a time, as the steps of a batch do."""
    replies = yield from store.insert_many(writes)
    for _ in range(3):
        todo = [n for n, reply in enumerate(replies) if getattr(reply, "transient", False)]
        again = (yield from store.insert_many([writes[n] for n in todo])) if todo else []
        for n, reply in zip(todo, again, strict=True):
            replies[n] = reply
    return replies


def each_has_one_owner(desk, replies):
    records = desk.records()
    for number, (key, reply) in enumerate(zip(keys(desk), replies, strict=True)):
        assert reply.record == records[key]
        assert reply.record.owner == ("theirs" if number % 9 == 0 else f"mine{desk.key}")
        assert reply.record.attempts == 1


def many_held(desk):
    store = desk.other.store
    replies = drive(store.insert_many([claim_of(f"n:{key}", desk.key) for key in keys(desk)]), store)
    records = [reply.record for reply in replies]
    for key in keys(desk)[::9]:  # these have gone on with another worker
        drive(store.delete(desk.record(key)), store)
        drive(store.insert(claim_of(f"n:{key}", "theirs")), store)
    return records


def end_many(desk, records):
    ends = [(record, completed(str(number)), Policy(lease=LEASE)) for number, record in enumerate(records)]
    until = desk.clock() + LEASE

    def ending(store):
        answers = yield from many.end_many(store, ends, desk.clock, lambda: until)
        for number, (record, outcome, policy) in enumerate(ends):
            if answers[number] is None:
                answers[number] = yield from steps.end(
                    store, record, outcome, policy, clock=desk.clock, until=lambda: until
                )
        return answers

    return desk.drive(ending)


def each_is_ended_or_lost(desk, outcomes):
    records = desk.records()
    for number, (key, outcome) in enumerate(zip(keys(desk), outcomes, strict=True)):
        stands = records[key]
        if number % 9 == 0:
            assert isinstance(outcome, Lost)
            assert (stands.owner, stands.status) == ("theirs", IN_PROGRESS)
        else:
            assert isinstance(outcome, Settled)
            assert (stands.owner, stands.status, stands.result) == (desk.key, COMPLETED, str(number))


CASES = {
    "a first call": Case(first, run, ran_once),
    "a duplicate": Case(lambda desk: desk.run(desk.handler), run, replayed),
    "a takeover": Case(lapsed, run, taken_over),
    "a failed handler": Case(first, failing, gave_back),
    "a renewal": Case(held, extend, extended),
    "a completion": Case(held, ended("complete", 5), is_left(COMPLETED, "5")),
    "a release": Case(held, ended("release", "later"), is_left(RELEASED, error="later")),
    "a parking": Case(held, ended("park", "broken"), is_left(PARKED, error="broken")),
    "the last attempt": Case(last_attempt, refused_for_good, is_left(PARKED, error="no luck")),
    "a transaction": Case(first, transact, paid),
    "a transaction that takes over": Case(lapsed, transact, paid),
    "a claim's transaction": Case(held, transact_in_claim, paid),
    "a batch of claims": Case(some_taken, claim_many, each_has_one_owner),
    "a batch of ends": Case(many_held, end_many, each_is_ended_or_lost),
}


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


# --- the store away for good --------------------------------------------------------------------------------------


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


def test_without_the_store_at_the_claim_the_handler_does_not_run(bench, gone, mode):
    desk = Desk(bench, mode)
    away(bench, gone, len(bench.proxy.seen))
    with pytest.raises(StoreError) as caught:
        desk.run(desk.handler)
    assert caught.value.transient
    assert desk.runs == 0
    back(bench)
    bench.clock.advance(LEASE + 3)
    assert desk.run(desk.handler) == {"run": 1}, "its claim, if it was made, lapses"


def test_without_the_store_at_completion_caller_gets_result_and_is_told(bench, gone, mode):
    desk = Desk(bench, mode)
    away(bench, gone, len(bench.proxy.seen) + 1)
    with pytest.raises(ResultNotRecorded) as caught:
        desk.run(desk.handler)
    assert caught.value.result == {"run": 1}
    assert desk.runs == 1
    back(bench)
    if gone == GONE["no reply comes back"]:
        ran_once(desk, {"run": 1})
    else:
        desk.stands(IN_PROGRESS)


def test_without_the_store_transaction_fails_and_later_truth_is_found_out(bench, gone, mode):
    desk = Desk(bench, mode)
    away(bench, gone, len(bench.proxy.seen))
    with pytest.raises(StoreError):
        desk.do(desk.once, "transact", desk.key, [desk.effect()], "first", name="n")
    back(bench)
    answer = desk.do(desk.once, "transact", desk.key, [desk.effect()], "second", name="n")
    assert answer == ("first" if gone == GONE["no reply comes back"] else "second")
    assert desk.spent() == 1


def test_without_store_claims_transaction_fails_and_is_found_out_later(bench, gone, mode):
    desk = Desk(bench, mode)
    claim = desk.acquire()
    away(bench, gone, len(bench.proxy.seen))
    with pytest.raises(StoreError):
        desk.do(claim, "transact", [desk.effect()], "first")
    back(bench)
    bench.clock.advance(LEASE)
    answer = desk.do(desk.once, "transact", desk.key, [desk.effect()], "second", name="n")
    assert answer == ("first" if gone == GONE["no reply comes back"] else "second")
    assert desk.spent() == 1


# --- a request that comes too late --------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["complete", "release", "park", "extend"])
def test_zombies_request_that_arrives_after_its_successor_changes_nothing(bench, mode, verb):
    desk = Desk(bench, mode)
    zombie = desk.acquire()
    away(bench, Fault(late=1000), len(bench.proxy.seen))
    with pytest.raises(StoreError if verb != "complete" else ResultNotRecorded):
        desk.do(zombie, verb)
    back(bench)
    bench.clock.advance(LEASE + 3)
    heir = bench.other.acquire(desk.key, name="n")
    before = desk.record()
    assert bench.proxy.deliver() > 0
    assert desk.record() == before
    heir.complete("heir")
    with pytest.raises(LeaseLost):
        desk.do(zombie, "complete", "zombie")
    desk.answers("heir")


def test_a_zombies_transaction_that_arrives_late_changes_nothing(bench, mode):
    desk = Desk(bench, mode)
    zombie = desk.acquire()
    away(bench, Fault(late=1000), len(bench.proxy.seen))
    with pytest.raises(StoreError):
        desk.do(zombie, "transact", [desk.effect()], "zombie")
    back(bench)
    bench.clock.advance(LEASE + 3)
    heir = bench.other.acquire(desk.key, name="n")
    before = desk.record()
    assert bench.proxy.deliver() > 0
    assert (desk.record(), desk.spent()) == (before, 0)
    heir.transact([desk.effect()], "heir")
    assert desk.spent() == 1


def test_a_batch_that_arrives_late_changes_nothing(bench, mode):
    desk = Desk(bench, mode)
    first_batch = len(bench.proxy.seen)
    bench.proxy.rule = lambda seen: Fault(late=1000) if seen.number == first_batch else None
    claim_many(desk, None)
    back(bench)
    before = [desk.record(key) for key in keys(desk)]
    assert bench.proxy.deliver() == 1
    assert [desk.record(key) for key in keys(desk)] == before


# --- members of a batch -------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("made", [False, True], ids=["not-made", "made"])
def test_an_end_in_a_batch_that_fails_is_written_alone(bench, mode, made):
    for code in PASSING + OTHER:
        desk = Desk(bench, mode)
        records = many_held(desk)
        fault = failing_member(4, code, made=made)
        bench.proxy.rule = lambda seen, fault=fault: fault if len(seen.body.get("Statements", ())) == 25 else None
        each_is_ended_or_lost(desk, end_many(desk, records))
        back(bench)


def test_once_batch_may_not_write_member_all_later_ones_are_written_alone(bench, mode):
    desk = Desk(bench, mode)
    some_taken(desk)
    fault = failing_member(4, "AccessDenied", made=False)
    bench.proxy.rule = lambda seen: fault if len(seen.body.get("Statements", ())) == 25 else None
    with pytest.warns(UserWarning, match="PartiQLInsert"):
        replies = claim_many(desk, None)
    each_has_one_owner(desk, replies)
    back(bench)
    again = Desk(bench, mode)
    some_taken(again)
    bench.proxy.seen.clear()
    each_has_one_owner(again, claim_many(again, None))
    assert bench.proxy.actions == ["PutItem"] * MEMBERS


def test_keys_that_were_not_read_back_are_asked_for_again(bench, mode):
    desk = Desk(bench, mode)
    some_taken(desk)
    table = desk.table

    def fewer(body):
        return {
            "RequestItems": {table: {**body["RequestItems"][table], "Keys": body["RequestItems"][table]["Keys"][:1]}}
        }

    left = []

    def rule(seen):
        if seen.action != "BatchGetItem" or len(left) >= 2:
            return None
        left.append(seen.body["RequestItems"][table]["Keys"][1:])
        return Fault(
            edit_request=fewer,
            edit_reply=lambda answer: {
                **answer,
                "UnprocessedKeys": {table: {"Keys": left[-1], "ConsistentRead": True}},
            },
        )

    bench.proxy.rule = rule
    each_has_one_owner(desk, claim_many(desk, None))
    assert [len(keys) for keys in left] == [2, 1]


def test_keys_that_are_never_read_back_are_an_error_that_passes(bench, mode):
    desk = Desk(bench, mode)
    some_taken(desk)

    def rule(seen):
        if seen.action != "BatchGetItem":
            return None
        bench.clock.advance(1.0)
        asked = seen.body["RequestItems"]
        return Fault(edit_reply=lambda answer: {"Responses": {}, "UnprocessedKeys": asked})

    bench.proxy.rule = rule
    replies = claim_many(desk, None)
    failed = [one for one in replies if isinstance(one, StoreError)]
    assert all(one.transient and "throttled" in str(one) for one in failed)
    assert 0 < len(failed) < len(replies), "those that were won, and need not be read, are"


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
    assert sorted(bench.proxy.actions) == ["BatchExecuteStatement"] * math.ceil(count / 25) + ["BatchGetItem"]


def test_more_losers_than_one_read_can_take_are_read_with_two(bench, mode):
    desk = Desk(bench, mode)
    store = desk.other.store
    drive(store.insert_many([claim_of(f"n:{key}", "theirs") for key in keys(desk, 130)]), store)
    bench.proxy.seen.clear()
    replies = desk.drive(lambda store: store.insert_many([claim_of(f"n:{k}", "mine") for k in keys(desk, 130)]))
    assert [(reply.won, reply.record.owner) for reply in replies] == [(False, "theirs")] * 130
    assert bench.proxy.actions.count("BatchGetItem") == 2


def test_a_refused_member_whose_record_is_gone_when_read_back_is_told_so(bench, mode):
    desk = Desk(bench, mode)
    some_taken(desk)
    gone = desk.record(keys(desk)[0])

    def rule(seen):
        if seen.action == "BatchGetItem" and desk.record(keys(desk)[0]) is not None:
            desk.server.ask("DeleteItem", TableName=desk.table, Key={"key": {"S": gone.key}})

    bench.proxy.rule = rule
    replies = claim_many(desk, None)
    assert (replies[0].won, replies[0].record) == (False, None)


# --- answers that are broken --------------------------------------------------------------------------------------

OWN = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\n"
BROKEN = {
    "two lengths": OWN + b"Content-Length: 2\r\nContent-Length: 1\r\n\r\n{}",
    "a length and chunks": OWN + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a huge chunk": OWN + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 5000 + b"\r\n{}",
    "deep JSON": OWN + b"Content-Length: 50000\r\n\r\n" + b'{"Item":[[' * 5000,
    "cut short": OWN + b"Content-Length: 20\r\n\r\n{}",
    "no object": OWN + b"Content-Length: 2\r\n\r\n[]",
    "a page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
    "noise": b"\x16\x03\x01\x00\x00",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_write_whose_answer_is_broken_is_asked_again_and_recognised(bench, mode, broken):
    """It was made; its answer says neither that it was won nor that it was lost."""
    for number in range(2):  # the claim, the completion
        desk = Desk(bench, mode)
        at = len(bench.proxy.seen) + number
        bench.proxy.rule = lambda seen, at=at: Fault(raw=broken) if seen.number == at else None
        value = run(desk, None)
        assert len(bench.proxy.seen) > at + 1, "it was asked again"
        ran_once(desk, value)
        assert desk.record().attempts == 1
        back(bench)


# --- answers that tell too little -----------------------------------------------------------------------------------


def without_item(body):
    return {name: value for name, value in body.items() if name != "Item"}


def test_a_server_that_does_not_show_what_it_holds_is_asked_for_it(url, proxy):
    once = Once(url)
    once.run("k", int)
    proxy.seen.clear()
    proxy.rule = lambda seen: Fault(edit_reply=without_item) if seen.action == "PutItem" else None
    assert once.run("k", int) == 0
    assert proxy.actions == ["PutItem", "GetItem"]


def test_claim_whose_try_took_longer_than_its_patience_is_tried_once_more(proxy, table):
    once = Once(open_table(table, endpoint=proxy.url, timeout=2.5))
    once.run("warm", int)
    first = len(proxy.seen)
    proxy.rule = lambda seen: Fault(delay_reply=4.0) if seen.number == first else None
    assert once.run("k", int) == 0


def test_a_session_token_is_in_no_error(url, proxy):
    once = Once(url)
    text = "The Canonical String should have been 'POST\\n/\\nx-amz-security-token:FwoGZXIvYXdzEXAMPLE\\n'"
    proxy.rule = lambda seen: Refuse("InvalidSignatureException", message=text)
    with pytest.raises(StoreError) as caught:
        once.run("k", int)
    assert "FwoGZXIvYXdzEXAMPLE" not in str(caught.value)

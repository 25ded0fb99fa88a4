"""Results that are too large for an item: objects in S3, on a real server, also when it is away or slow."""

import json
import random
import time
from urllib.parse import unquote

import pytest
from test_dynamodb_transact import adding

from fixtures import closing_fixture
from onceward import LeaseLost, Once, ResultUnavailable, StoreError, current
from onceward.core.record import COMPLETED
from onceward.stores.dynamodb import open_table
from onceward.testing.clock import ManualClock
from servers.ministack import Ministack
from servers.proxy import Fault, Proxy, Refuse

pytestmark = pytest.mark.sampled(times=1)

BUCKET = "results"
chance = random.Random(5)
LARGE = "".join(map(chr, chance.choices(range(0x4E00, 0x9FFF), k=350_000)))  # a megabyte, hard to compress


@pytest.fixture(scope="module")
def s3():
    server = Ministack("s3")
    server.bucket(BUCKET)
    yield server
    server.stop()


_s3_proxy = closing_fixture(lambda s3: Proxy(s3.port), scope="module")


@pytest.fixture
def objects(s3, _s3_proxy, aws, monkeypatch):
    """The proxy in front of S3, whose objects the ledger of this test puts where nobody else's are."""
    _s3_proxy.clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", _s3_proxy.url)
    return _s3_proxy


@pytest.fixture
def blobs(table, objects):
    return f"s3://{BUCKET}/{table}"


@pytest.fixture
def stored(s3, table):
    """Returns the objects of this test's ledger."""
    return lambda: {key: body for key, body in s3.objects(BUCKET).items() if unquote(key).startswith(f"{table}/")}


@pytest.fixture
def once(url, blobs):
    made = Once(f"{url}&blobs={blobs}", max_result=10**7).using(name="n")
    made.run("warm", lambda: 0)
    yield made
    made.close()


@pytest.fixture
def clock(proxy, objects):
    made = ManualClock()
    proxy.date = objects.date = made
    return made


@pytest.fixture
def clocked(table, blobs, proxy, clock):
    """A Once on a clock that is moved by hand, and the server's with it."""
    store = open_table(table, endpoint=proxy.url, blobs=blobs, clock=clock)
    made = Once(store, clock=clock, lease=10, max_result=10**7).using(name="n")
    made.run("warm", lambda: 0)
    yield made
    made.close()


def large():
    return LARGE


@pytest.fixture
def stands(dynoxide, table):
    """Returns the item of a key."""

    def read(key="k"):
        (item,) = [item for item in dynoxide.items(table) if item["key"]["S"] == f"n:{key}"]
        return item

    return read


def test_a_large_result_is_replayed_from_its_object(once, objects, stands, stored):
    assert once.run("k", large) == LARGE
    assert once.run("k", pytest.fail) == LARGE
    assert objects.actions == ["PUT", "GET"]
    (name,) = stored()
    assert stands()["result"] == {"M": {"bucket": {"S": BUCKET}, "key": {"S": name}}}
    assert json.loads(stored()[name]) == LARGE


def test_keys_of_any_text_get_objects_of_their_own(once, stored):
    keys = ["a/b", "a%2Fb", "../x", "ä ö", "?", "k" * 900]
    for key in keys:
        assert once.run(key, lambda key=key: key + LARGE) == key + LARGE
    for key in keys:
        assert once.run(key, pytest.fail) == key + LARGE
    assert len(stored()) == len(keys)


def test_a_bucket_that_is_gone_does_not_make_the_handler_run(url, objects, stands):
    once = Once(f"{url}&blobs=s3://no-such-bucket/x", max_result=10**7).using(name="n")
    with pytest.warns(UserWarning, match="NoSuchBucket"):
        assert once.run("k", large) == LARGE
    assert stands()["status"] == {"S": COMPLETED}
    with pytest.raises(ResultUnavailable, match="NoSuchBucket"):
        once.run("k", pytest.fail)


FAULTS = {
    "the request is lost": Fault(lose_request=True),
    "the reply is lost": Fault(lose_reply=True),
    "the connection breaks amid the reply": Fault(reset_reply=True),
    "it arrives twice": Fault(twice=True),
    "slow down": Refuse("SlowDown", 503),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_passing_fault_of_s3_is_survived_at_completion_and_at_replay(once, objects, fault, times, stored):
    objects.rule = lambda seen: fault if seen.number < times else None
    assert once.run("k", large) == LARGE
    first = len(objects.seen)
    objects.rule = lambda seen: fault if first <= seen.number < first + times else None
    assert once.run("k", pytest.fail) == LARGE
    assert len(stored()) == 1


@pytest.mark.parametrize("fault", [Fault(lose_reply=True), Refuse("InternalError", 500)], ids=["lost", "500"])
def test_when_s3_stays_away_the_record_is_completed_all_the_same(clocked, clock, objects, stands, fault):
    """Its result is lost for replays, and that is said; the handler does not run again (invariant 7)."""

    def rule(seen):
        clock.advance(2)
        return fault

    objects.rule = rule
    with pytest.warns(UserWarning, match="not stored"):
        assert clocked.run("k", large) == LARGE
    assert stands()["status"] == {"S": COMPLETED}
    objects.rule = lambda seen: None
    clock.advance(60)
    with pytest.raises(ResultUnavailable):
        clocked.run("k", pytest.fail)


def test_an_object_that_takes_longer_than_a_renewal_is_written_once(url, blobs, objects, stands):
    """A renewal comes before the completion, which is written again, and finds its object there."""
    once = Once(f"{url}&blobs={blobs}", lease=8, heartbeat=0.5, max_result=10**7).using(name="n")
    objects.rule = lambda seen: time.sleep(1.2)
    with once.claim("k") as claim:
        claim.complete(LARGE)
    assert "M" in stands()["result"]
    assert objects.actions == ["PUT"]


def test_a_request_to_s3_that_was_signed_at_another_time_is_signed_again(clocked, clock, objects):
    """As the first one of a process that was frozen."""
    objects.date = lambda: clock() + 3600
    objects.rule = lambda seen: Refuse("RequestTimeTooSkewed", 403) if len(objects.seen) == 1 else None
    clocked.run("k", large)
    assert objects.actions == ["PUT", "PUT"]
    first, second = (seen.headers["x-amz-date"] for seen in objects.seen)
    assert first < second


def test_a_zombies_late_object_does_not_overwrite_its_successors(clocked, clock, objects):
    zombie = clocked.acquire("k")

    def rule(seen):  # nothing of the zombie's gets through until its lease is over and its heir has come
        if len(objects.seen) == 1:
            clock.advance(15)
            clocked.acquire("k").complete("heir" + LARGE)
            return Fault(late=1000)
        return None

    objects.rule = rule
    with pytest.raises(LeaseLost):
        zombie.complete("zombie" + LARGE)
    assert objects.deliver() == 1
    assert clocked.run("k", pytest.fail) == "heir" + LARGE


def test_a_transaction_with_a_large_result_is_made_also_while_s3_is_away(once, objects, dynoxide, table):
    money = dynoxide.table(f"money-of-{table}", {"id": "S"})
    assert once.transact("k", [adding(money)], LARGE) == LARGE
    assert once.transact("k", [adding(money)], "again") == LARGE
    objects.rule = lambda seen: Refuse("InternalError", 500)
    with pytest.warns(UserWarning, match="not stored"):
        once.transact("j", [adding(money)], LARGE)
    objects.rule = lambda seen: None
    with pytest.raises(ResultUnavailable, match="s3:PutObject"):
        once.transact("j", [adding(money)], LARGE)
    assert [item["n"] for item in dynoxide.items(money)] == [{"N": "2"}]


def test_a_duplicate_that_needs_no_value_needs_no_s3(once, url, blobs, objects):
    once.run("k", large)
    ledger = Once(f"{url}&blobs={blobs}").ledger
    objects.seen.clear()
    objects.rule = lambda seen: Refuse("AccessDenied", 403)
    record, _ = ledger.show("n:k")
    assert record.status == COMPLETED
    assert record.result.startswith(f"s3://{BUCKET}/")
    assert [one.key for one, _ in ledger.records("n:k")] == ["n:k"]
    assert ledger.stats("n:k")["COMPLETED"] == 1
    assert ledger.clear("n:k").status == COMPLETED
    assert objects.actions == []


@pytest.mark.parametrize("fault", [Refuse("AccessDenied", 403), Refuse("InternalError", 500), None], ids=str)
def test_a_duplicate_whose_result_cannot_be_fetched_harms_no_other(once, objects, s3, stored, fault):
    once = Once(once.store, max_result=10**7)
    ran = []

    def handle(order):
        ran.append(order["id"])
        return LARGE if order["id"] == "k3" else order["id"]

    batch = once.batch(handle, key="order.id", name="b")
    batch.run([{"id": "k3"}])
    if fault is None:
        (name,) = stored()
        s3.call("DELETE", f"/{BUCKET}/{name}")
    objects.rule = lambda seen: fault if seen.action == "GET" else None
    outcomes = batch.run([{"id": f"k{n}"} for n in range(10)])
    assert [one.status for one in outcomes] == ["done"] * 3 + ["replayed"] + ["done"] * 6
    assert isinstance(outcomes[3].error, StoreError if fault else ResultUnavailable)
    objects.rule = lambda seen: None
    again = batch.run([{"id": f"k{n}"} for n in range(10)])
    assert [one.status for one in again] == ["replayed"] * 10
    assert again[3].value == (LARGE if fault else None)
    assert len(ran) == 10


def test_other_content_under_the_objects_name_is_error_and_never_replay(once, s3, stored):
    once.run("k", large)
    (name,) = stored()
    s3.call("PUT", f"/{BUCKET}/{name}", b'"another result"')
    with pytest.raises(ResultUnavailable, match="SHA-256"):
        once.run("k", pytest.fail)


def test_a_large_result_of_a_step_goes_to_s3_and_comes_back_only_when_asked_for(once, objects, stored):
    def handle():
        claim = current()
        got = claim.step("large", lambda: LARGE)
        if claim.attempt == 1:
            raise LookupError
        return len(got)

    with pytest.raises(LookupError):
        once.run("k", handle)
    assert len(stored()) == 1
    assert len(once.ledger.show("n:k")[0].steps) < 1_000
    before = len(objects.seen)
    with pytest.raises(LookupError), once.claim("k"):
        raise LookupError
    assert len(objects.seen) == before
    assert once.run("k", handle) == len(LARGE)

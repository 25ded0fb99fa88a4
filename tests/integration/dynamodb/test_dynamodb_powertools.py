"""A table of AWS Lambda Powertools, shared by real Powertools workers and ours on a real server."""

import datetime as dt
import threading
import time
from dataclasses import dataclass

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyValidationError,
)

from onceward import Busy, LeaseLost, Mismatch, Once, Parked, StoreError
from onceward.core.drivers import drive
from onceward.core.selections import ByKey
from onceward.stores.dynamodb.layouts import preset
from onceward.stores.dynamodb.layouts.powertools_keys import powertools_key
from onceward.stores.dynamodb.store import DynamoStore
from onceward.testing.bench import claim_of, next_of
from servers.needs import numbers
from web.plain_wire import plain_wires

NUMBERS = numbers()
NAME = "shop.charge"
ORDER = {"id": "order-42", "amount": 7}
KEY = powertools_key(ORDER, "id")
ID = f"{NAME}#{KEY}"


class Context:
    """What Lambda tells a handler of its time."""

    def __init__(self, milliseconds):
        self.get_remaining_time_in_millis = lambda: milliseconds


class Shop:
    """One table, and workers of both kinds on it; ``ran`` tells whose handler ran."""

    def __init__(self, dynoxide, proxy, keys=("id",), layout=None, **layer):
        self.server, self.proxy, self.options = dynoxide, proxy, layer
        self.table = dynoxide.table(f"powertools-{next(NUMBERS)}", dict.fromkeys(keys, "S"))
        self.client = boto3.client("dynamodb", endpoint_url=dynoxide.url, region_name="eu-west-1")
        self.layout = layout or preset("powertools")
        self.ran = []
        self.stores = []
        self.once = self.ours()

    def ours(self, **options):
        self.stores.append(DynamoStore(self.table, plain_wires(self.proxy.url), layout=self.layout))
        return Once(self.stores[-1], name=NAME, **options)

    def theirs(self, handler=None, remaining=60_000, **config):
        """A function that Powertools guards, as it runs in a Lambda function with ``remaining`` milliseconds."""
        config = IdempotencyConfig(
            event_key_jmespath="id", lambda_context=None if remaining is None else Context(remaining), **config
        )
        layer = DynamoDBPersistenceLayer(self.table, boto3_client=self.client, **self.options)

        @idempotent_function(data_keyword_argument="order", config=config, persistence_store=layer, key_prefix=NAME)
        def charge(order):
            self.ran.append("theirs")
            return {"by": "theirs"} if handler is None else handler()

        return lambda: charge(order=ORDER)

    def run(self, once=None, handler=None, **options):
        def charge(order):
            self.ran.append("ours")
            return {"by": "ours"} if handler is None else handler()

        return (once or self.once).using(**options).run(KEY, charge, ORDER)

    def ahead(self, seconds):
        """Let the server's clock show a later time (seconds) to our workers. Theirs read the machine's."""
        self.proxy.date = lambda: time.time() + seconds
        self.once = self.ours()

    @property
    def item(self):
        (item,) = self.server.items(self.table)
        return item

    def item_of(self, text):
        (item,) = (item for item in self.server.items(self.table) if item["id"]["S"] == text)
        return item

    def close(self):
        for store in self.stores:
            store.close()
        self.client.close()


@pytest.fixture
def make(dynoxide, proxy):
    made = []

    def shop(*args, **options):
        made.append(Shop(dynoxide, proxy, *args, **options))
        return made[-1]

    yield shop
    for one in made:
        one.close()


@pytest.fixture
def shop(make):
    return make()


def hanging(shop, **options):
    """Leave a claim of Powertools behind, as of a worker that was killed."""

    def killed():
        raise SystemExit

    with pytest.raises(SystemExit):
        shop.theirs(killed, **options)()
    shop.ran.clear()


def boom():
    raise RuntimeError("no")


# --- Powertools first ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [{"by": "theirs"}, None, 0, "", [], {"a": [1.5, "\u00e4"]}])
def test_a_result_of_powertools_is_replayed(shop, result):
    shop.theirs(lambda: result)()
    assert shop.run() == result
    assert shop.ran == ["theirs"]


def test_a_result_of_powertools_is_replayed_until_it_expires(shop):
    shop.theirs()()
    shop.ahead(3590)
    assert shop.run() == {"by": "theirs"}
    shop.ahead(3610)
    assert shop.run() == {"by": "ours"}


def test_a_result_of_powertools_is_decoded_into_the_annotated_type(shop):
    @dataclass
    class Receipt:
        number: int

    shop.theirs(lambda: {"number": 7})()

    def charge(order) -> Receipt:
        raise AssertionError

    charge.__annotations__["return"] = Receipt
    assert shop.once.run(KEY, charge, ORDER) == Receipt(7)


def test_a_claim_of_powertools_is_honoured_until_it_lapses(shop):
    hanging(shop, remaining=60_000)
    with pytest.raises(Busy) as caught:
        shop.run()
    assert 55 < caught.value.retry_after < 63
    shop.ahead(55)
    with pytest.raises(Busy):
        shop.run()
    shop.ahead(62)
    assert shop.run() == {"by": "ours"}
    assert shop.theirs()() == {"by": "ours"}
    assert shop.ran == ["ours"]


@pytest.mark.filterwarnings("ignore:Couldn't determine the remaining time:UserWarning")
def test_a_claim_of_powertools_without_end_is_honoured_until_it_expires(shop):
    hanging(shop, remaining=None)
    shop.ahead(3590)
    with pytest.raises(Busy):
        shop.run()
    shop.ahead(3610)
    claim = shop.once.acquire(KEY)
    assert claim.attempt == 2


def test_a_takeover_from_powertools_is_second_attempt_and_its_fence_grows(shop):
    hanging(shop, remaining=1000)
    shop.ahead(5)
    claim = shop.once.acquire(KEY)
    assert claim.attempt == 2
    taken = time.time() - 10
    assert taken * 1e6 < claim.fence < (time.time() + 10) * 1e6
    claim.complete(None)
    (record,) = drive(shop.stores[-1].select(ByKey(), None, 10), shop.stores[-1]).records
    assert record.fence == claim.fence
    drive(shop.stores[-1].delete(record), shop.stores[-1])
    assert shop.once.acquire(KEY).fence > claim.fence


def test_one_alone_takes_over_from_powertools(shop):
    for _ in range(5):
        hanging(shop, remaining=1)
        shop.ahead(3)
        shop.ran.clear()
        ours, theirs = [shop.ours() for _ in range(3)], [shop.theirs() for _ in range(3)]
        start = threading.Barrier(6)

        def work(run, start=start):
            start.wait()
            try:
                run()
            except (Busy, IdempotencyAlreadyInProgressError):
                pass

        runs = [*(lambda once=once: shop.run(once) for once in ours), *theirs]
        threads = [threading.Thread(target=work, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(shop.ran) == 1
        shop.client.delete_item(TableName=shop.table, Key={"id": {"S": ID}})


def test_what_a_takeover_has_seen_must_still_be_there(shop):
    hanging(shop, remaining=1)
    store = shop.stores[0]
    key = f"{NAME}:{KEY}"
    seen = drive(store.load(key), store).record
    time.sleep(0.01)
    hanging(shop, remaining=60_000)
    now = drive(store.load(key), store).record
    assert (now.owner, now.fence) != (seen.owner, seen.fence)
    write = claim_of(key, "me", fence=seen.fence + 1)
    for replies in (drive(store.swap_many([(write, seen)]), store), [drive(store.swap(write, seen), store)]):
        assert [(reply.won, reply.record) for reply in replies] == [(False, now)]
    assert drive(store.delete(seen), store).won is False
    assert drive(store.swap(write, now), store).won


def test_a_batch_takes_over_from_powertools(shop):
    store = shop.stores[0]
    for number in range(30):
        item = {
            "id": {"S": f"{NAME}#{number:032}"},
            "status": {"S": "INPROGRESS"},
            "expiration": {"N": f"{int(time.time()) + 3600}"},
            "in_progress_expiration": {"N": "1000"},
        }
        shop.client.put_item(TableName=shop.table, Item=item)
    page = drive(store.select(ByKey(), None, 100), store)
    pairs = [(claim_of(seen.key, "me", fence=seen.fence + 1), seen) for seen in page.records]
    mine = drive(store.insert(claim_of("mine", "me")), store).record
    replies = drive(store.swap_many([*pairs, (next_of(mine), mine)]), store)
    assert [reply.won for reply in replies] == [True] * 31
    assert not any(reply.won for reply in drive(store.swap_many(pairs), store))


@pytest.mark.parametrize("options", [{"on_lapse": "park"}, {"max_attempts": 1}])
def test_a_lapsed_claim_of_powertools_is_parked_where_none_may_be_retried(shop, options):
    hanging(shop, remaining=1)
    shop.ahead(3)
    with pytest.raises(Parked):
        shop.run(**options)
    with pytest.raises(IdempotencyAlreadyInProgressError):
        shop.theirs()()
    assert shop.ran == []


def test_a_function_that_fails_in_powertools_runs_in_ours(shop):
    with pytest.raises(RuntimeError):
        shop.theirs(boom)()
    assert shop.run() == {"by": "ours"}


# --- onceward first -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [{"by": "ours"}, [1, "a"], "text", 7, None, "x" * 10_000])
def test_powertools_replays_our_result(shop, result):
    shop.run(handler=lambda: result)
    assert shop.theirs()() == result
    assert shop.ran == ["ours"]


def test_a_result_that_is_kept_for_ever_is_replayed_by_powertools(shop):
    shop.run(retention=None)
    assert shop.theirs()() == {"by": "ours"}


@pytest.mark.parametrize("result", [(1, 2), {1}, dt.datetime(2026, 1, 1), b"bytes"])
def test_powertools_is_not_given_a_result_that_only_we_can_read(shop, result):
    assert shop.run(handler=lambda: result) == result
    with pytest.raises(IdempotencyAlreadyInProgressError):
        shop.theirs()()
    assert shop.run() == result
    assert shop.ran == ["ours"]


def test_powertools_does_not_return_what_we_raise(shop):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            shop.run(handler=boom, final=(RuntimeError,))
    with pytest.raises(IdempotencyAlreadyInProgressError):
        shop.theirs()()
    assert shop.ran == ["ours"]


def test_powertools_honours_our_claim(shop):
    claim = shop.once.acquire(KEY)
    with pytest.raises(IdempotencyAlreadyInProgressError):
        shop.theirs()()
    claim.complete({"by": "ours"})
    assert shop.theirs()() == {"by": "ours"}
    assert shop.ran == []


def test_powertools_takes_over_our_lapsed_claim_and_we_learn_it_is_lost(shop):
    shop.ahead(-100)
    claim = shop.once.acquire(KEY, lease=90)
    assert shop.theirs()() == {"by": "theirs"}
    with pytest.raises(LeaseLost):
        claim.complete({"by": "ours"})
    assert shop.run() == {"by": "theirs"}


def test_powertools_runs_what_we_gave_back(shop):
    with pytest.raises(RuntimeError):
        shop.run(handler=boom)
    assert shop.theirs()() == {"by": "theirs"}
    assert shop.run() == {"by": "theirs"}


def test_powertools_does_not_run_what_we_parked(shop):
    with pytest.raises(RuntimeError):
        shop.run(handler=boom, on_error="park")
    with pytest.raises(IdempotencyAlreadyInProgressError):
        shop.theirs()()
    with pytest.raises(Parked):
        shop.run()
    assert shop.ran == ["ours"]


# --- one after the other ------------------------------------------------------------------------------------------


def test_a_late_powertools_worker_that_completes_our_takeover_is_believed(shop):
    inside, go_on, got = threading.Event(), threading.Event(), []

    def slow():
        inside.set()
        assert go_on.wait(30)
        return {"by": "late"}

    worker = threading.Thread(target=lambda: got.append(shop.theirs(slow, remaining=1)()))
    worker.start()
    assert inside.wait(30)
    shop.ahead(3)
    claim = shop.once.acquire(KEY)
    with pytest.raises(Busy):
        shop.run()
    go_on.set()
    worker.join()
    assert got == [{"by": "late"}]
    assert shop.item["onceward_status"] == {"S": "IN_PROGRESS"}, "its update leaves our attributes in place"
    with pytest.raises(LeaseLost):
        claim.complete({"by": "ours"})
    assert shop.run() == {"by": "late"}
    assert shop.theirs()() == {"by": "late"}


def completed_late(shop):
    """What a late Powertools worker does to any record: an unconditional update of three attributes."""
    layer = DynamoDBPersistenceLayer(shop.table, boto3_client=shop.client)
    layer.configure(IdempotencyConfig(event_key_jmespath="id", expires_after_seconds=7200), key_prefix=NAME)
    layer.save_success(data=ORDER, result={"by": "late"})


@pytest.mark.parametrize("ending", ["completed", "not replayable", "released", "parked"])
def test_what_a_late_powertools_worker_writes_over_our_record_is_believed(shop, ending):
    claim = shop.once.acquire(KEY)
    if ending == "completed":
        claim.complete({"by": "ours"})
    elif ending == "not replayable":
        claim.complete((1, 2))
    elif ending == "released":
        claim.release()
    else:
        claim.park("no")
    completed_late(shop)
    assert shop.run() == {"by": "late"}
    assert shop.theirs()() == {"by": "late"}
    assert shop.ran == []
    shop.ahead(7300)
    claim = shop.once.acquire(KEY)
    assert claim.attempt == 1, "its record expired, so the attempts count anew"
    claim.complete({"by": "ours"})
    assert shop.run() == {"by": "ours"}


def test_a_record_that_powertools_wrote_over_ours_is_conditioned_on_both(shop):
    store = shop.stores[0]
    shop.run()
    completed_late(shop)
    seen = drive(store.load(f"{NAME}:{KEY}"), store).record
    shop.client.update_item(
        TableName=shop.table,
        Key={"id": {"S": ID}},
        UpdateExpression="SET onceward_beat = :b",
        ExpressionAttributeValues={":b": {"N": "9"}},
    )
    assert drive(store.delete(seen), store).won is False


def test_a_batch_does_not_write_over_what_a_late_powertools_worker_wrote(shop):
    store = shop.stores[0]
    held = [drive(store.insert(claim_of(key, "me")), store).record for key in (f"{NAME}:{KEY}", "another")]
    completed_late(shop)
    shop.proxy.seen.clear()
    late, renewed = drive(store.swap_many([(next_of(record), record) for record in held]), store)
    assert (late.won, late.record.result, renewed.won) == (False, '{"by": "late"}', True)
    assert shop.proxy.actions == ["BatchExecuteStatement", "BatchGetItem"]
    (again,) = drive(store.swap_many([(next_of(renewed.record, status="RELEASED"), renewed.record)]), store)
    assert again.won


@pytest.fixture
def replies(shop):
    """What a batch has answered that completed two claims."""
    store = shop.stores[0]
    held = [drive(store.insert(claim_of(key, "me")), store).record for key in (f"{NAME}:{KEY}", "another")]
    done = [(next_of(record, status="COMPLETED", result='{"by":"ours"}'), record) for record in held]
    made = drive(store.swap_many(done), store)
    assert all(reply.won for reply in made)
    assert "BatchExecuteStatement" in shop.proxy.actions
    return made


def test_a_record_that_a_batch_wrote_can_be_written_over_and_taken_over(shop, replies):
    assert shop.item_of(ID)["in_progress_expiration"] == {"NULL": True}
    completed_late(shop)
    shop.ahead(7300)
    assert shop.run() == {"by": "ours"}
    assert shop.ran == ["ours"]


# --- payload validation -------------------------------------------------------------------------------------------


def fingerprinted(shop):
    @shop.once(key=lambda order: powertools_key(order, "id"), fingerprint="order.amount")
    def charge(order):
        return {"by": "ours"}

    return charge


def test_validation_of_powertools_is_not_compared_with_our_fingerprint(shop):
    shop.theirs(payload_validation_jmespath="amount")()
    assert "validation" in shop.item
    assert fingerprinted(shop)(ORDER) == {"by": "theirs"}


def test_our_fingerprint_is_compared_in_our_records(shop):
    charge = fingerprinted(shop)
    assert charge(ORDER) == {"by": "ours"}
    with pytest.raises(Mismatch):
        charge({**ORDER, "amount": 8})


def test_powertools_with_validation_refuses_our_records_and_runs_nothing(shop):
    shop.run()
    with pytest.raises(IdempotencyValidationError):
        shop.theirs(payload_validation_jmespath="amount")()
    assert shop.ran == ["ours"]


def test_a_claim_that_we_take_over_loses_the_hash_of_its_old_payload(shop):
    hanging(shop, remaining=1, payload_validation_jmespath="amount")
    assert "validation" in shop.item
    shop.ahead(3)
    assert shop.run() == {"by": "ours"}
    assert "validation" not in shop.item
    with pytest.raises(IdempotencyValidationError):  # it must not replay ours as the answer to the old payload
        shop.theirs(payload_validation_jmespath="amount")()


# --- tables -------------------------------------------------------------------------------------------------------


def test_a_table_with_a_sort_key_is_shared(make):
    layout = preset("powertools", "pk=idempotency#fn", "sk={key}")
    shop = make(("pk", "sk"), layout, key_attr="pk", sort_key_attr="sk", static_pk_value="idempotency#fn")
    shop.theirs()()
    assert shop.run() == {"by": "theirs"}
    shop.client.delete_item(TableName=shop.table, Key={"pk": {"S": "idempotency#fn"}, "sk": {"S": ID}})
    shop.run()
    assert shop.theirs()() == {"by": "ours"}


def test_a_table_with_other_names_is_shared(make):
    names = {"status": "a", "expiration": "b", "data": "c", "in_progress_expiration": "d", "onceward_owner": "e"}
    layer = {"status_attr": "a", "expiry_attr": "b", "data_attr": "c", "in_progress_expiry_attr": "d"}
    shop = make(layout=preset("powertools", names=names), **layer)
    hanging(shop, remaining=1)
    shop.ahead(3)
    assert shop.run() == {"by": "ours"}
    assert shop.theirs()() == {"by": "ours"}
    assert shop.item.keys() >= {"id", "a", "b", "c", "e"}
    assert "status" not in shop.item


def test_records_of_both_are_listed_and_purged(shop):
    store = shop.stores[0]
    shop.theirs()()
    shop.once.run("readable", lambda: 1)
    shop.client.put_item(TableName=shop.table, Item={"id": {"S": f"{NAME}#x"}, "status": {"S": "shipped"}})
    page = drive(store.select(ByKey(f"{NAME}:"), None, 100), store)
    assert sorted(record.key for record in page.records) == sorted([f"{NAME}:{KEY}", f"{NAME}:readable"])
    assert drive(store.select(ByKey("shop.other:"), None, 100), store).records == []
    shop.ahead(30 * 86_400)
    later = shop.stores[-1]
    assert drive(later.purge(100), later).gone == 2
    assert len(shop.server.items(shop.table)) == 1


def test_an_item_that_is_nobodys_record_is_an_error_that_names_it(shop):
    shop.client.put_item(TableName=shop.table, Item={"id": {"S": ID}, "status": {"S": "shipped"}})
    with pytest.raises(StoreError, match=r"'shipped'.*INPROGRESS.*shop\.charge#"):
        shop.run()
    assert shop.ran == []

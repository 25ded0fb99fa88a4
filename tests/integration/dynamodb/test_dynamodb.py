"""The DynamoDB ledger on a real server: what it sends and stores, that it conforms, and calls through a boto3 client of the user's."""

import asyncio
import itertools
import random
import time
from contextlib import nullcontext

import aiobotocore.session
import boto3
import pytest
from botocore.config import Config

from onceward import Busy, Once, ResultUnavailable, StoreError
from onceward.core.clock import boottime
from onceward.stores.dynamodb import open_table
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.stores.dynamodb.sdk import through
from onceward.testing.conformance import CHECKS, MODES, Bench
from onceward.wire.calls import Call
from servers.proxy import Fault, Refuse
from stores.unknown_fields import check_unknown_fields_stay
from tables import each

pytestmark = pytest.mark.sampled(mode=1, send=1)


@pytest.fixture
def make(dynoxide, proxy):
    """Makes a store with an empty table whose server runs on the clock that is given."""
    numbers = itertools.count(time.time_ns())

    def made(clock):
        proxy.date = clock
        return open_table(dynoxide.table(f"c-{next(numbers)}"), endpoint=proxy.url, clock=clock)

    return made


@pytest.fixture
def attribute(dynoxide):
    """Adds an attribute to an item, as a newer version does."""

    def added(store, key):
        table, place = store.requests.table, store.layout.key(key)
        update = {"UpdateExpression": "SET later = :x", "ExpressionAttributeValues": {":x": {"S": "x"}}}
        dynoxide.ask("UpdateItem", TableName=table, Key=place, **update)
        return lambda: dynoxide.ask("GetItem", TableName=table, Key=place)["Item"].get("later") == {"S": "x"}

    return added


@pytest.mark.parametrize("mode", MODES)
@each("check", CHECKS)
def test_the_dynamodb_store_conforms(check, mode, make, proxy):
    def again(store, clock):
        return open_table(store.requests.table, endpoint=proxy.url, clock=clock)

    check.run(Bench(make, again, mode=mode))


def test_a_write_keeps_the_fields_of_a_newer_version(make, attribute):
    check_unknown_fields_stay(Bench(make), attribute)


def charge(order):
    return {"receipt": order}


def fail():
    raise RuntimeError("no")


@pytest.fixture
def once(url, proxy):
    """A Once that has seen an answer, so that it knows the server's time; the proxy's count starts after that."""
    made = Once(url)
    made.run("warm", charge, 0)
    proxy.seen.clear()
    yield made
    made.close()


def test_how_many_requests_a_call_takes(once, url, proxy):
    def asked(do, *error):
        proxy.seen.clear()
        with pytest.raises(error) if error else nullcontext():
            do()
        return proxy.actions

    def call(once):
        assert once.run("k", charge, 1) == {"receipt": 1}

    new, cached = Once(url), Once(url, cache=10)
    assert asked(lambda: call(new)) == ["GetItem", "PutItem", "UpdateItem"], "it asks for the time first"
    assert proxy.seen[0].body["ConsistentRead"] is False
    assert asked(lambda: call(once)) == ["PutItem"], "a duplicate"
    assert asked(lambda: once.run("other", charge, 1)) == ["PutItem", "UpdateItem"]
    assert asked(lambda: once.run("fails", fail), RuntimeError) == ["PutItem", "UpdateItem"]
    assert asked(lambda: call(Once(url))) == ["GetItem"], "the first question answers an early duplicate"
    assert asked(lambda: call(cached)) == ["GetItem"]
    assert asked(lambda: call(cached)) == []
    probe = Once(url + "&probe=read")
    probe.run("warm", charge, 0)
    assert asked(lambda: call(probe)) == ["GetItem"]
    once.acquire("busy")
    assert asked(lambda: once.acquire("busy"), Busy) == ["PutItem"]
    assert "ReturnConsumedCapacity" not in proxy.seen[0].body, "nobody observes"


def test_a_transaction_keeps_what_it_does_not_name(url, proxy, attribute):
    once = Once(url, name="n")
    claim = once.acquire("k")
    stays = attribute(once.store, "n:k")
    claim.transact([], 1)
    assert stays()
    assert once.run("k", fail) == 1


def test_a_record_is_readable_in_the_console_and_a_long_result_compressed(once, dynoxide, table):
    once.run("order-42", charge, 7)
    (item,) = [i for i in dynoxide.items(table) if "order-42" in i["key"]["S"]]
    assert item["status"] == {"S": "COMPLETED"}
    assert item["result"] == {"S": '{"receipt":7}'}
    assert item["expires_at"]["N"].isdigit(), "DynamoDB's TTL takes whole seconds"
    assert not {"fingerprint", "error"} & item.keys()
    once = once.using(name="n")
    assert once.run("k", lambda: "abc" * 50_000) == once.run("k", pytest.fail) == "abc" * 50_000
    (item,) = [i for i in dynoxide.items(table) if i["key"]["S"].endswith(":k")]
    assert len(item["result"]["B"]) < 2000


def test_a_result_that_no_item_can_hold_completes_all_the_same(once, proxy):
    noise = random.randbytes(500_000).hex()
    wide = once.using(name="n", max_result=10_000_000)
    with pytest.warns(UserWarning, match="400 KB"):
        assert wide.run("k", lambda: noise) == noise
    with pytest.raises(ResultUnavailable, match="blobs="):
        wide.run("k", pytest.fail)
    assert proxy.actions == ["PutItem", "UpdateItem", "PutItem"]
    with pytest.warns(UserWarning, match="'large' is recorded without its.*400 KB"), wide.claim("steps") as claim:
        claim.step("large", lambda: noise)


def test_what_cannot_be_asked_for_is_refused(url):
    with pytest.raises(ValueError, match="could not tell whether the writes were made, so catch Busy"):
        Once(url).transact("k", [], on_busy="skip")
    with pytest.raises(ValueError, match="at least 3"):
        Once(url).acquire("k", lease=1)  # shorter than the clock can tell


@each(
    ("code", "says"),
    [
        ("AccessDeniedException", r"allow dynamodb:PutItem"),
        ("ResourceNotFoundException", r"onceward init"),
        ("UnrecognizedClientException", r"access key"),
        ("ExpiredTokenException", r"expired"),
        ("ValidationException", r"check that the table's key"),
        ("InvalidSignatureException", r"clock"),
    ],
)
def test_a_lasting_error_names_the_table_the_action_and_the_fix(once, proxy, table, code, says):
    proxy.rule = lambda seen: Refuse(code, message="not this request: POST\n/\nx-amz-security-token:not-a-secret\n")
    with pytest.raises(StoreError, match=says) as caught:
        once.run("k", charge, 1)
    told = str(caught.value)
    assert (table in told, "dynamodb:PutItem" in told, "not-a-secret" in told) == (True, True, False)
    assert not caught.value.transient


@each(
    ("url", "says"),
    [
        ("dynamodb://", "no name"),
        ("dynamodb://t/x", "dynamodb://TABLE"),
        ('dynamodb://t"; DROP', "not the name of a table|no host and port"),
        ("dynamodb://t?colour=red", "unknown option colour"),
        ("dynamodb://t?timeout=0", "positive"),
        ("dynamodb://t?probe=write", "probe"),
        ("dynamodb://t?blobs=http://x", "s3://bucket/prefix"),
        ("dynamodb://t?partition=pk=a&sort=sk=b", "exactly one"),
        ("dynamodb://t?name.colour=red", "unknown field colour"),
    ],
)
def test_a_url_that_is_not_right_is_refused_when_it_is_opened(url, says, aws):
    with pytest.raises(ValueError, match=says):
        Once(url)


def requests_to(told):
    return lambda event: told.append(event) if event.kind == "store_request" else None


def test_every_request_tells_what_it_cost(proxy, table):
    told = []
    once = Once(open_table(table, endpoint=proxy.url), observe=[requests_to(told)])
    once.run("k", charge, 1)
    assert [(one.action, one.units, one.error) for one in told] == [
        ("dynamodb:GetItem", 0.5, ""),
        ("dynamodb:PutItem", 1.0, ""),
        ("dynamodb:UpdateItem", 1.0, ""),
    ]
    once.run("k", charge, 1)
    assert (told[-1].units, told[-1].error) == (None, "ConditionalCheckFailed")
    assert all(0 < one.seconds < 5 and one.store.startswith(f"dynamodb://{table}") for one in told)
    told.clear()
    proxy.seen.clear()
    once.batch(charge, key="order", name="b").run(list(range(30)))  # requests that are sent beside others
    assert (len(told), sum(one.units for one in told)) == (len(proxy.seen), 60)


def test_a_throttled_or_lost_request_is_told_each_time(proxy, table):
    told = []
    once = Once(open_table(table, endpoint=proxy.url), observe=[requests_to(told)])
    once.run("first", charge, 1)
    told.clear()
    # A request that fails on a kept connection is sent once more on a new one, before anybody is told.
    faults = iter([Refuse("ThrottlingException"), Fault(lose_request=True), Fault(lose_request=True)])
    proxy.rule = lambda seen: next(faults, None)
    once.run("k", charge, 1)
    assert [one.error for one in told] == ["Throttling", "StoreError", "", ""]


def test_a_fence_grows_across_a_clear_though_another_process_claims_next(url):
    fences = []
    for _ in range(3):
        mine = Once(url)
        claim = mine.acquire("k")
        fences.append(claim.fence)
        mine.ledger.clear(claim.record.key, live=True)
        mine.close()
    assert fences == sorted(set(fences))


KEY = {"key": {"S": "k"}}
ITEM = KEY | {"result": {"B": b"\x00\xff"}}


@pytest.fixture
def options(aws):
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=5)
    return {"region_name": "eu-west-1", "config": config}


@pytest.fixture(params=["blocking", "in threads"])
def send(request, options, proxy):
    """Sends a call in one of the two ways."""

    def sent(action, url=proxy.url, **body):
        client = boto3.client("dynamodb", endpoint_url=url, **options)
        wires, call = through(client, boottime), Call(DYNAMODB, action, body)
        try:
            return wires.send(call, 0.0) if request.param == "blocking" else asyncio.run(wires.send_async(call, 0.0))
        finally:
            client.close()

    return sent


def test_answer_has_status_document_with_bytes_date_and_times_around_it(send, proxy, table):
    proxy.date = lambda: 1763730960.0
    assert send("PutItem", TableName=table, Item=ITEM)[:2] == (200, {})
    got = send("GetItem", TableName=table, Key=KEY)
    assert got[:3] == (200, {"Item": ITEM}, 1763730960.0)
    assert got.sent <= got.received


def test_error_is_answer_with_its_code_its_message_and_what_else_it_says(send, proxy, table):
    put = {"TableName": table, "Item": ITEM, "ConditionExpression": "attribute_not_exists(#k)"}
    put |= {"ExpressionAttributeNames": {"#k": "key"}, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    assert send("PutItem", **put).status == 200
    refused = send("PutItem", **put)
    assert (refused.status, refused.body["__type"]) == (400, "ConditionalCheckFailedException")
    assert refused.body["Item"] == ITEM
    cancelled = send("TransactWriteItems", TransactItems=[{"Put": put}])
    assert (cancelled.status, cancelled.body["__type"]) == (400, "TransactionCanceledException")
    assert cancelled.body["CancellationReasons"][0]["Code"] == "ConditionalCheckFailed"
    proxy.rule = lambda seen: Refuse("Bad", 502)
    assert send("GetItem", TableName=table, Key=KEY).status == 502


def test_nobody_listening_or_no_answer_is_a_passing_error(send, proxy, table):
    proxy.rule = lambda seen: Fault(lose_reply=True)
    for url in ("http://127.0.0.1:1", proxy.url):
        with pytest.raises(StoreError, match="GetItem through the given client") as caught:
            send("GetItem", url, TableName=table, Key=KEY)
        assert caught.value.transient
        assert caught.value.__cause__ is not None


def test_what_is_not_a_client_for_dynamodb_is_refused(options):
    resource = boto3.resource("dynamodb", **options)
    creator = aiobotocore.session.get_session().create_client("dynamodb")
    creator._coro.close()  # it is never entered
    s3, client = (boto3.client(name, **options) for name in ("s3", "dynamodb"))
    for wrong in (s3, "dynamodb", creator, resource, resource.Table("ledger")):
        with pytest.raises(TypeError, match="not a client for dynamodb"):
            through(wrong, boottime)
    with pytest.raises(ValueError, match="blobs= does not go with client="):
        open_table("ledger", client=client, blobs="s3://bucket")
    for one in (s3, client, resource.meta.client):
        one.close()

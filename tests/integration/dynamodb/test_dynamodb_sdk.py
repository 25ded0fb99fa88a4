"""Calls through a client of boto3 that the user made."""

import asyncio

import aiobotocore.session
import boto3
import pytest
from botocore.config import Config

from onceward.core.clock import boottime
from onceward.errors import StoreError
from onceward.stores.dynamodb import open_table
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.stores.dynamodb.sdk import through
from onceward.wire.calls import Call
from servers.proxy import Fault, Refuse

pytestmark = pytest.mark.sampled(send=1)

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

"""Calls through a client of boto3 that the user made."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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

pytestmark = pytest.mark.sampled(send=1)

GET = Call(DYNAMODB, "GetItem", {"TableName": "ledger", "Key": {"key": {"S": "k"}}})
PUT = Call(DYNAMODB, "PutItem", {"TableName": "ledger", "Item": {"key": {"S": "k"}, "result": {"B": b"\x00\xff"}}})


class Service(BaseHTTPRequestHandler):
    """Answers as its server's ``answers`` say, by action: a status and a document or bytes."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        action = self.headers.get("X-Amz-Target", self.command).rpartition(".")[2]
        self.server.seen.append((action, content))
        status, body = self.server.answers[action]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response_only(status)
        self.send_header("Date", "Fri, 21 Nov 2025 13:16:00 GMT")
        self.send_header("x-amzn-RequestId", "1")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = answer

    def log_message(self, *args):
        pass


@pytest.fixture
def service():
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        server.seen, server.answers = [], {}
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def options(url, keys=True):
    made = {
        "region_name": "eu-west-1",
        "endpoint_url": url,
        "config": Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=2),
    }
    if keys:
        made |= {"aws_access_key_id": "AKIA", "aws_secret_access_key": "s"}
    return made


@contextmanager
def boto(service, name="dynamodb", **more):
    client = boto3.client(name, **options(service.url), **more)
    yield client
    client.close()


@pytest.fixture(params=["blocking", "in threads"])
def send(request, service):
    """Sends calls in one of the two ways."""

    def sent(*calls):
        with boto(service) as client:
            wires = through(client, boottime)
            if request.param == "blocking":
                return [wires.send(call, 0.0) for call in calls]

            async def main():
                return [await wires.send_async(call, 0.0) for call in calls]

            return asyncio.run(main())

    return sent


def test_answer_has_status_document_with_bytes_date_and_times_around_it(send, service):
    service.answers = {"GetItem": (200, {"Item": {"result": {"B": "AP8="}}}), "PutItem": (200, {})}
    got, put = send(GET, PUT)
    assert got[:3] == (200, {"Item": {"result": {"B": b"\x00\xff"}}}, 1763730960.0)
    assert got.sent <= got.received
    assert put[:2] == (200, {})
    assert json.loads(service.seen[1][1])["Item"] == {"key": {"S": "k"}, "result": {"B": "AP8="}}


def test_error_is_answer_with_its_code_its_message_and_what_else_it_says(send, service):
    kind = "com.amazonaws.dynamodb.v20120810#"
    refused = {"__type": f"{kind}ConditionalCheckFailedException", "message": "no", "Item": {"key": {"S": "k"}}}
    service.answers = {
        "PutItem": (400, refused),
        "TransactWriteItems": (
            400,
            {
                "__type": f"{kind}TransactionCanceledException",
                "CancellationReasons": [{"Code": "None"}],
                "Message": "no",
            },
        ),
        "GetItem": (502, b"<html>Bad Gateway"),
    }
    put, transact, get = send(
        PUT, Call(DYNAMODB, "TransactWriteItems", {"TransactItems": [{"Put": dict(PUT.body)}]}), GET
    )
    assert put[:3] == (
        400,
        {"__type": "ConditionalCheckFailedException", "message": "no", "Item": {"key": {"S": "k"}}},
        1763730960.0,
    )
    assert transact.status == 400
    assert transact.body["__type"] == "TransactionCanceledException"
    assert transact.body["CancellationReasons"] == [{"Code": "None"}]
    assert get.status == 502


def test_nobody_listening_is_a_passing_error(send, service):
    service.url = "http://127.0.0.1:1"
    with pytest.raises(StoreError, match="GetItem through the given client") as caught:
        send(GET)
    assert caught.value.transient
    assert caught.value.__cause__ is not None


def test_an_answer_that_takes_too_long_is_a_passing_error(send, service):
    class Slow(dict):
        def __getitem__(self, action):
            time.sleep(2.5)
            return 200, {}

    service.answers = Slow()
    with pytest.raises(StoreError) as caught:
        send(GET)
    assert caught.value.transient


def test_no_credentials_are_a_lasting_error(service, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    client = boto3.session.Session().client("dynamodb", **options(service.url, keys=False))
    with pytest.raises(StoreError, match="credentials") as caught:
        through(client, boottime).send(GET, 0.0)
    assert not caught.value.transient
    client.close()


def test_threads_carry_the_calls_of_coroutines_side_by_side(service):
    barrier = threading.Barrier(3)

    class Together(dict):
        def __getitem__(self, action):
            barrier.wait(60)
            return 200, {}

    service.answers = Together()

    async def main(wires):
        return await asyncio.gather(*(wires.send_async(GET, 0.0) for _ in range(3)))

    with boto(service) as client:
        assert [answer.status for answer in asyncio.run(main(through(client, boottime)))] == [200] * 3


def test_what_is_not_a_client_for_dynamodb_is_refused(service):
    resource = boto3.resource("dynamodb", **options(service.url))
    creator = aiobotocore.session.get_session().create_client("dynamodb")
    creator._coro.close()  # it is never entered
    with boto(service, "s3") as s3, boto(service) as client:
        for wrong in (s3, "dynamodb", creator, resource, resource.Table("ledger")):
            with pytest.raises(TypeError, match="not a client for dynamodb"):
                through(wrong, boottime)
        with pytest.raises(ValueError, match="blobs= does not go with client="):
            open_table("ledger", client=client, blobs="s3://bucket")
    resource.meta.client.close()


def test_a_client_of_aiobotocore_is_refused(service):
    async def main():
        async with aiobotocore.session.get_session().create_client("dynamodb", **options(service.url)) as client:
            with pytest.raises(TypeError, match="not a client for dynamodb"):
                through(client, boottime)

    asyncio.run(main())

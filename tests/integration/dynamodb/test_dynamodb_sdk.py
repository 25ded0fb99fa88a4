"""Calls through a client of boto3 or aiobotocore that the user made."""

import asyncio
import json
import threading
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiobotocore.session
import boto3
import pytest
from aiobotocore.config import AioConfig
from botocore.config import Config

from onceward import Busy, Once, current
from onceward.errors import StoreError
from onceward.stores.dynamodb import open_table, sdk
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.stores.dynamodb.sdk import AsyncSdkWire, through
from onceward.wire.calls import Call, ObjectCall

pytestmark = pytest.mark.sampled(carrier=1)

GET = Call(DYNAMODB, "GetItem", {"TableName": "ledger", "Key": {"key": {"S": "k"}}})
PUT = Call(DYNAMODB, "PutItem", {"TableName": "ledger", "Item": {"key": {"S": "k"}, "result": {"B": b"\x00\xff"}}})


class Service(BaseHTTPRequestHandler):
    """Answers as its server's ``answers`` say, by action or method: a status and a document or bytes."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        action = self.headers.get("X-Amz-Target", self.command).rpartition(".")[2]
        self.server.seen.append((action, content))
        status, body = self.server.answers[action]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response_only(status)
        self.send_header("Date", "Fri, 21 Nov 2025 13:16:00 GMT")
        self.send_header("x-amz-request-id" if self.command != "POST" else "x-amzn-RequestId", "1")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = answer

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
        "config": Config(retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=0.3),
    }
    if keys:
        made |= {"aws_access_key_id": "AKIA", "aws_secret_access_key": "s"}
    return made


@contextmanager
def boto(service, name="dynamodb", **more):
    client = boto3.client(name, **options(service.url), **more)
    yield client
    client.close()


@asynccontextmanager
async def aioboto(service, name="dynamodb"):
    made = options(service.url)
    made["config"] = AioConfig(retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=0.3)
    async with aiobotocore.session.get_session().create_client(name, **made) as client:
        yield client


class Carrier:
    """One of the three ways, called by blocking."""

    def __init__(self, kind, service):
        self.kind, self.service = kind, service

    def send(self, *calls, objects=False):
        if self.kind == "aiobotocore":
            return asyncio.run(self.asynchronous(calls, objects))
        with boto(self.service) as client, boto(self.service, "s3") if objects else nullcontext() as s3:
            opened = through(client, objects=s3)
            if self.kind == "boto3":
                return [opened[0]().send(call, 0.0) for call in calls]
            wire = opened[1]()
            assert isinstance(wire, AsyncSdkWire)

            async def main():
                return [await wire.send(call, 0.0) for call in calls]

            return asyncio.run(main())

    async def asynchronous(self, calls, objects):
        async with aioboto(self.service) as client, aioboto(self.service, "s3") if objects else nullcontext() as s3:
            wire = through(client, objects=s3)[1]()
            return [await wire.send(call, 0.0) for call in calls]


@pytest.fixture(params=["boto3", "boto3 in threads", "aiobotocore"])
def carrier(request, service):
    return Carrier(request.param, service)


def test_answer_has_status_document_with_bytes_date_and_times_around_it(carrier, service):
    service.answers = {"GetItem": (200, {"Item": {"result": {"B": "AP8="}}}), "PutItem": (200, {})}
    got, put = carrier.send(GET, PUT)
    assert got[:3] == (200, {"Item": {"result": {"B": b"\x00\xff"}}}, 1763730960.0)
    assert got.sent <= got.received
    assert put[:2] == (200, {})
    assert json.loads(service.seen[1][1])["Item"] == {"key": {"S": "k"}, "result": {"B": "AP8="}}


def test_error_is_answer_with_its_code_its_message_and_what_else_it_says(carrier, service):
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
    put, transact, get = carrier.send(
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


def test_objects_go_through_a_client_for_s3(carrier, service):
    service.answers = {"PUT": (200, b""), "GET": (200, b"\x00\xff")}
    put, get = carrier.send(ObjectCall("PUT", "b", "a/k", b"\x00\xff"), ObjectCall("GET", "b", "a/k"), objects=True)
    assert put.status == 200
    assert get[:3] == (200, b"\x00\xff", 1763730960.0)
    assert b"\x00\xff" in service.seen[0][1]
    service.answers["GET"] = (404, b"<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>")
    (missing,) = carrier.send(ObjectCall("GET", "b", "a/k"), objects=True)
    assert missing[:2] == (404, {"__type": "NoSuchKey", "message": "gone"})


def test_without_a_client_for_s3_objects_are_refused(carrier):
    with pytest.raises(StoreError, match="client for S3") as caught:
        carrier.send(ObjectCall("GET", "b", "k"))
    assert not caught.value.transient


def test_an_object_over_the_limit_is_a_lasting_error(carrier, service, monkeypatch):
    monkeypatch.setattr(sdk, "LIMIT", 10)
    service.answers = {"GET": (200, b"x" * 11)}
    with pytest.raises(StoreError, match="the limit is 10") as caught:
        carrier.send(ObjectCall("GET", "b", "k"), objects=True)
    assert not caught.value.transient


def test_no_answer_in_time_is_a_passing_error(carrier, service):
    class Slow(dict):
        def __getitem__(self, action):
            time.sleep(0.6)
            return 200, {}

    service.answers = Slow()
    for url in (service.url, "http://127.0.0.1:1"):  # where nobody listens
        service.url = url
        with pytest.raises(StoreError, match="GetItem through the given client") as caught:
            carrier.send(GET)
        assert caught.value.transient
        assert caught.value.__cause__ is not None


def test_no_credentials_are_a_lasting_error(service, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    client = boto3.session.Session().client("dynamodb", **options(service.url, keys=False))
    with pytest.raises(StoreError, match="credentials") as caught:
        through(client)[0]().send(GET, 0.0)
    assert not caught.value.transient
    client.close()


def test_threads_carry_the_calls_of_coroutines_side_by_side(service):
    barrier = threading.Barrier(3)

    class Together(dict):
        def __getitem__(self, action):
            barrier.wait(60)
            return 200, {}

    service.answers = Together()

    async def main(wire):
        return await asyncio.gather(*(wire.send(GET, 0.0) for _ in range(3)))

    with boto(service) as client:
        assert [answer.status for answer in asyncio.run(main(through(client)[1]()))] == [200] * 3


# --- blocking calls through a client of aiobotocore ------------------------------------------------------------------


def test_blocking_calls_are_carried_by_event_loop_that_client_is_used_in(service):
    service.answers = {"GetItem": (200, {}), "PutItem": (400, {"__type": "x#Refused", "message": "no"})}

    async def main():
        async with aioboto(service) as client:
            blocking, awaiting = (open_wire() for open_wire in through(client))
            await awaiting.send(GET, 0.0)
            answers = [await asyncio.to_thread(blocking.send, call, 0.0) for call in (GET, PUT)]
            service.answers = {}
            with pytest.raises(StoreError) as caught:
                await asyncio.to_thread(blocking.send, GET, 0.0)
            blocking.close()
            assert caught.value.transient
            return answers

    got, refused = asyncio.run(main())
    assert got[:3] == (200, {}, 1763730960.0)
    assert (refused.status, refused.body["__type"]) == (400, "Refused")


def test_without_an_event_loop_to_carry_them_blocking_calls_are_refused(service):
    service.answers = {"GetItem": (200, {})}

    async def main():
        async with aioboto(service) as client:
            blocking, awaiting = (open_wire() for open_wire in through(client))
            with pytest.raises(TypeError, match=r"this client is asynchronous.*boto3\.client"):
                await asyncio.to_thread(blocking.send, GET, 0.0)
            await awaiting.send(GET, 0.0)
            with pytest.raises(TypeError, match="would wait for itself"):
                blocking.send(GET, 0.0)
            return blocking

    blocking = asyncio.run(main())
    with pytest.raises(TypeError, match="this client is asynchronous"):
        blocking.send(GET, 0.0)
    assert len(service.seen) == 1


def test_an_event_loop_that_ends_with_the_call_under_way_is_passing_error(service):
    gate = threading.Event()

    class Slow(dict):
        def __getitem__(self, action):
            if len(service.seen) > 1:
                gate.set()
                time.sleep(0.2)
            return 200, {}

    service.answers = Slow()
    errors = []

    def ask(wire):
        try:
            wire.send(GET, 0.0)
        except StoreError as error:
            errors.append(error)

    async def main():
        async with aioboto(service) as client:
            blocking, awaiting = (open_wire() for open_wire in through(client))
            await awaiting.send(GET, 0.0)
            thread = threading.Thread(target=ask, args=(blocking,))
            thread.start()
            await asyncio.to_thread(gate.wait)
            return thread

    asyncio.run(main()).join()
    assert [error.transient for error in errors] == [True]


def test_clients_of_both_kinds_are_refused(service):
    async def main():
        async with aioboto(service) as client:
            with boto(service, "s3") as s3, pytest.raises(TypeError, match="both of boto3 or both of aiobotocore"):
                through(client, objects=s3)

    asyncio.run(main())


def test_what_is_not_a_client_for_dynamodb_is_refused(service):
    resource = boto3.resource("dynamodb", **options(service.url))
    with boto(service, "s3") as s3, boto(service) as client:
        creator = aiobotocore.session.get_session().create_client("dynamodb")
        creator._coro.close()  # it is never entered
        for wrong in (s3, "dynamodb", creator):
            with pytest.raises(TypeError, match="not a client for dynamodb"):
                through(wrong)
        with pytest.raises(TypeError, match="not a client for s3"):
            through(client, objects=client)
        for wrong in (resource, resource.Table("ledger")):
            with pytest.raises(TypeError, match=r'is a resource: pass boto3\.client\("dynamodb"\)'):
                through(wrong)
        with pytest.raises(TypeError, match="rewrites attribute values"):
            through(resource.meta.client)
    resource.meta.client.close()


def test_a_coroutine_through_a_client_of_aiobotocore_keeps_its_claim(proxy, url, table):
    other, ran = Once(url, lease=3).using(name="n"), []

    async def handle(who):
        ran.append(who)
        await asyncio.sleep(6)
        return current().lost

    async def main():
        session = aiobotocore.session.get_session()
        async with session.create_client("dynamodb", region_name="eu-west-1", endpoint_url=proxy.url) as client:
            once = Once(open_table(table, client=client), lease=3).using(name="n")
            first = asyncio.create_task(once.run_async("k", handle, "first"))
            await asyncio.sleep(5)
            with pytest.raises(Busy):
                await other.run_async("k", handle, "second")
            return await first

    assert asyncio.run(main()) is False
    assert ran == ["first"]

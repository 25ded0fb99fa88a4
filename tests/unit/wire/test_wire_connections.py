"""The connections of both wires: which are kept, replaced and shared, over TLS and without a proxy."""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import threading
import time
from unittest.mock import Mock

import pytest
from botocore.session import get_session

from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.stores.dynamodb.sdk import SdkWire
from onceward.wire import calls, connections, credentials, endpoints, nonblocking, sockets, wires
from servers.needs import certificate
from web.scripted import CALL, Server, answer, reset, serve, slow

pytestmark = pytest.mark.sampled(carrier=1)


@pytest.mark.parametrize("end", [[answer(b'{"unasked": 1}')], [b"x"], []], ids=["answer", "byte", "end"])
def test_what_comes_unasked_on_a_kept_connection_answers_no_later_request(carrier, end):
    told, said = threading.Event(), threading.Event()

    def script(server, connection):
        server.request(connection)
        connection.sendall(answer(b'{"n":1}'))
        told.wait(60)
        for part in end:
            connection.sendall(part)
        if not end:
            connection.shutdown(socket.SHUT_WR)
        said.set()
        server.request(connection)

    with Server(script, serve(answer(b'{"n":2}'))) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made).body == {"n": 1}
        told.set()
        said.wait(60)
        time.sleep(0.05)  # its event loop, too, has not looked
        assert carrier.send(made).body == {"n": 2}
    assert server.connections == 2


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nConte"])
@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_a_kept_connection_that_is_closed_during_a_request_is_replaced(carrier, part, end):
    def script(server, connection):
        server.request(connection)
        connection.sendall(answer())
        server.request(connection)
        connection.sendall(part)
        end(connection)

    with Server(script, serve(answer(b'{"second": 1}'))) as server:
        ticks = iter(range(100))
        made = carrier.wire(server.url, clock=lambda: float(next(ticks)))
        carrier.send(made)
        got = carrier.send(made)
        assert got.body == {"second": 1}
        assert got.sent == 2.0  # before the first try, which may have been the one that was carried out
    assert len(server.requests) == 3


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """The file of a certificate for 127.0.0.1, and a server's context with it."""
    chain, private = certificate(tmp_path_factory.mktemp("tls"))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(chain, private)
    return str(chain), server


@pytest.mark.parametrize(
    ("bundle", "host", "told"),
    [
        (None, "127.0.0.1", ["could not be verified", "AWS_CA_BUNDLE"]),
        ("its own", "localhost", ["localhost"]),
        ("/nowhere/bundle.pem", "127.0.0.1", ["/nowhere/bundle.pem"]),
    ],
    ids=["nobody vouches", "another host", "no bundle"],
)
def test_a_certificate_that_is_not_trusted_is_a_lasting_error(carrier, tls, monkeypatch, bundle, host, told):
    if bundle:
        monkeypatch.setenv("AWS_CA_BUNDLE", tls[0] if bundle == "its own" else bundle)
    with Server(serve(answer()), tls=tls[1]) as server:
        error = carrier.refused(carrier.wire(server.url.replace("127.0.0.1", host)))
    assert not error.transient
    assert [part for part in told if part not in str(error)] == server.requests == []


def test_requests_go_over_tls_with_the_certificates_of_aws_ca_bundle(carrier, tls, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", tls[0])
    large = os.urandom(3_000_000)
    with Server(serve(answer(b'{"a":1}'), answer(b""), answer(large)), tls=tls[1]) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made).body == {"a": 1}
        assert carrier.send(made, calls.ObjectCall("PUT", "b", "k", large)).status == 200
        assert carrier.send(made, calls.ObjectCall("GET", "b", "k")).body == large
    assert server.connections == 1
    assert server.requests[1][1] == large


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("sdk", [False, True])
def test_a_child_process_uses_connections_of_its_own(sdk):
    by = {}

    def script(server, connection):
        while (request := server.request(connection)) is not None:
            by.setdefault(connection.getpeername(), []).append(json.loads(request[1])["TableName"])
            connection.sendall(answer())

    with Server(script) as server:
        region = endpoints.Endpoints("eu-west-1", dynamodb=server.url)
        client = get_session().create_client("dynamodb", "eu-west-1", endpoint_url=server.url)
        wire = SdkWire(client, time.time) if sdk else sockets.HttpWire(region, credentials.CredentialSource())
        send = lambda who: wire.send(calls.Call(DYNAMODB, "GetItem", {"TableName": who, "Key": {}}), time.time())
        send("parent")
        child = os.fork()
        if child == 0:
            try:
                send("child")
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        send("parent")
        wire.close()
        client.close()
    assert list(by.values()) == [["parent"] * 2, ["child"]]


def test_calls_that_leave_together_need_no_thread_of_their_own(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    wire = Mock(send=lambda call, at: call)
    assert wires.Wires(lambda: wire, lambda: wire).send(calls.Many((1, 2, 3)), 0.0) == [1, 2, 3]


def async_wire(server):
    region = endpoints.Endpoints("eu-west-1", dynamodb=server.url)
    return nonblocking.AsyncHttpWire(region, credentials.CredentialSource())


async def test_coroutines_share_so_many_connections_and_the_others_wait(monkeypatch):
    monkeypatch.setattr(connections, "KEPT", 3)
    with Server(serve(answer())) as server, contextlib.closing(async_wire(server)) as made:
        await asyncio.gather(*(made.send(CALL, 1e9) for _ in range(30)))
    assert (server.connections, len(server.requests)) == (3, 30)


def test_each_event_loop_has_its_own_connections_until_it_is_closed():
    with Server(serve(answer())) as server, contextlib.closing(async_wire(server)) as made:
        for number in range(3):
            asyncio.run(made.send(CALL, 1e9))
            assert server.connections == number + 1
            assert server.ended.acquire(timeout=60) if number else True  # the loop before


async def test_a_cancelled_send_closes_its_connection_and_gives_back_its_turn(monkeypatch):
    monkeypatch.setattr(connections, "KEPT", 1)
    with Server(slow, serve(answer(b'{"second": 1}'))) as server, contextlib.closing(async_wire(server)) as made:
        task = asyncio.ensure_future(made.send(CALL, 1e9))
        while not server.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.ended.acquire, timeout=60)
        assert (await made.send(CALL, 1e9)).body == {"second": 1}

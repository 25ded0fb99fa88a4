"""What the proxy does with a request whose upstream answers, does not answer, or answers badly."""

import asyncio
import gzip
import socket
import ssl
import struct
import threading

import pytest

from fixtures import closing_fixture
from onceward import Once
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.proxy import Proxy
from servers.needs import certificate, free_port
from web.asgi import Client, ask, scope, statuses
from web.calls import Rules
from web.upstream import CLOSE, OK, Scripted

once = closing_fixture(lambda: Once("memory:"))


def a_silent_one(reader, writer):
    return reader.read()


NO_ANSWER = {
    "a gateway's": (b"HTTP/1.1 502 X\r\nContent-Length: 2\r\n\r\nno", 502, None),
    "that of an earlier attempt": (b"HTTP/1.1 409 X\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno", 409, None),
    "closed": (CLOSE, 502, "upstream-no-answer"),
    "half a head": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent", 502, "upstream-no-answer"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", 502, "upstream-no-answer"),
    "a status of no server": (b"HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n", 502, "upstream-no-answer"),
    "another protocol": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", 502, "upstream-no-answer"),
    "silence": (a_silent_one, 504, "upstream-silent"),
}


@pytest.mark.parametrize("case", NO_ANSWER)
async def test_a_key_whose_request_got_no_answer_stays_claimed(once, case):
    answer, status, problem = NO_ANSWER[case]
    async with Scripted(answer) as upstream:
        proxy = upstream.proxy(once, silence=0.5 if status == 504 else 60)
        first = await ask(proxy)
        assert first.status == status
        assert (first.body == b"no") if problem is None else (first.problem == problem)
        assert statuses(once) == [IN_PROGRESS]
        assert (await ask(proxy)).status == 409
        assert len(upstream.requests) == 1


TORN = {
    "length": b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 9\r\n\r\nabc",
    "chunks": b"HTTP/1.1 201 Created\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "no chunk": b"HTTP/1.1 201 Created\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
}


@pytest.mark.parametrize("case", TORN)
async def test_an_answer_that_is_broken_off_never_looks_whole_and_is_not_recorded(once, case):
    async with Scripted(TORN[case]) as upstream:
        first = await ask(upstream.proxy(once))
        whole = first.sent and not first.sent[-1].get("more_body", False) and len(first.sent) > 1
        assert not whole or first.status == 502  # nothing was sent before, so a problem still could be
        assert statuses(once) == [IN_PROGRESS]


async def test_after_the_lease_the_request_goes_out_again_with_the_same_key(once):
    async with Scripted(CLOSE, OK) as upstream:
        proxy = upstream.proxy(once, lease=0.3, wait=60)
        assert (await ask(proxy)).status == 502
        second = await ask(proxy)
        assert (second.status, second.body) == (201, b"{}")
        first, again = upstream.requests
        assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
        assert [one.headers["onceward-attempt"] for one in upstream.requests] == ["1", "2"]
        assert int(first.headers["onceward-fence"]) < int(again.headers["onceward-fence"])


async def test_a_connection_that_is_refused_gives_the_key_back(once):
    proxy = Proxy(f"http://127.0.0.1:{free_port()}", once, Rules(), name="http")
    first = await ask(proxy)
    assert (first.status, first.problem) == (502, "upstream-unreachable")
    assert first.headers["retry-after"] == "1"
    assert statuses(once) == [RELEASED]
    assert (await ask(proxy)).status == 502


BODIES = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\nTrailer: dropped\r\n\r\n",
    "the end": b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nabc",
    "after interim answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
}


@pytest.mark.parametrize("case", BODIES)
async def test_an_answer_is_passed_on_and_repeated_however_it_is_framed(once, case):
    async with Scripted(BODIES[case]) as upstream:
        proxy = upstream.proxy(once)
        first, again = await ask(proxy), await ask(proxy)
        assert (first.status, first.body) == (again.status, again.body) == (200, b"abc")
        assert again.headers["idempotent-replayed"] == "true"
        assert not {"transfer-encoding", "connection", "trailer"} & first.headers.keys()
        assert statuses(once) == [COMPLETED]
        assert len(upstream.requests) == 1


async def test_a_compressed_answer_is_repeated_as_it_was(once):
    data = gzip.compress(b'{"paid":true}')
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(data)
    async with Scripted(head + data) as upstream:
        proxy = upstream.proxy(once)
        assert [(await ask(proxy)).body for _ in range(2)] == [data] * 2


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("PUT", 204), ("PUT", 304)])
async def test_a_body_that_must_not_be_is_no_answer_to_another(once, method, status):
    async def with_body(reader, writer):
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 38\r\n\r\n" % status)
        await writer.drain()
        await gone.wait()
        writer.write(b"HTTP/1.1 299 X\r\nContent-Length: 0\r\n\r\n")

    gone = asyncio.Event()
    async with Scripted(with_body, OK) as upstream:
        proxy = upstream.proxy(once)
        client = await ask(proxy, headers=[], method=method)
        assert (client.status, client.body) == (status, b"")
        other = asyncio.ensure_future(ask(proxy))
        await asyncio.sleep(0.1)
        gone.set()
        assert (await other).status == 201


@pytest.mark.parametrize("says_so", [False, True], ids=["cut", "closed"])
def test_over_tls_an_answer_without_a_length_is_whole_only_if_its_sender_says_that_it_closes(
    once, says_so, tmp_path, monkeypatch
):
    chain, private = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, private)

    def serve(listener):
        connection = context.wrap_socket(listener.accept()[0], server_side=True)
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 201 Created\r\nConnection: close\r\n\r\nabc")
        if says_so:
            connection.unwrap()
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        proxy = Proxy(f"https://127.0.0.1:{listener.getsockname()[1]}", once, Rules(), name="http")
        first = asyncio.run(asyncio.wait_for(ask(proxy), 60))
        thread.join()
    assert statuses(once) == [COMPLETED if says_so else IN_PROGRESS]
    assert first.sent[-1].get("more_body", False) is not says_so


async def test_the_answer_of_a_request_whose_client_left_is_recorded(once):
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(reader, writer):
        begun.set()
        await release.wait()
        writer.write(OK)

    async with Scripted(slow) as upstream:
        proxy = upstream.proxy(once, wait=60)
        client = Client()
        request = asyncio.create_task(proxy(scope(), client.receive, client.send))
        await begun.wait()
        client.gone.set()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        release.set()
        again = await ask(proxy)
        assert (again.status, again.headers["idempotent-replayed"]) == (201, "true")
        assert len(upstream.requests) == 1


async def test_without_a_key_a_client_that_leaves_ends_its_request(once):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(reader, writer):
        begun.set()
        assert await reader.read() == b""  # the proxy has closed the connection
        ended.set()

    async with Scripted(slow) as upstream:
        client = Client()
        request = asyncio.create_task(upstream.proxy(once)(scope([], "GET"), client.receive, client.send))
        await begun.wait()
        client.gone.set()
        await request
        await ended.wait()
        assert client.problem == "unreadable"


async def test_an_answer_that_came_before_its_connection_broke_is_whole(once):
    async def early(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\nContent-Length: 100000\r\n\r\n" + 100_000 * b"a")
        await writer.drain()
        linger = struct.pack("ii", 1, 0)  # a close sends RST, as it does when a part of the request is not read
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with Scripted(raw=early) as upstream:

        async def slow(message):
            await asyncio.sleep(0.2)
            await client.send(message)

        client = Client()
        await upstream.proxy(once)(scope([], "PUT"), client.receive, slow)
        assert (client.status, len(client.body)) == (413, 100_000)

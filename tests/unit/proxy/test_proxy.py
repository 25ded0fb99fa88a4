"""What the proxy does with a request whose upstream answers, does not answer, or answers badly."""

import asyncio
import gzip
import socket
import ssl
import struct
import threading

import pytest

from onceward import Once
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.keys.ledger_keys import derived_key
from onceward.proxy import Proxy
from onceward.web import Route
from servers.certificates import certificate
from servers.needs import free_port
from tables import each
from web.asgi import KEY, Client, ask, scope, statuses
from web.calls import Rules
from web.upstream import CLOSE, OK, with_upstream


@pytest.fixture
def once():
    made = Once("memory:")
    yield made
    made.close()


# --- outcomes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [502, 524])
def test_a_gateways_answer_passes_and_its_key_stays_claimed(once, status):
    async def main(upstream):
        proxy = upstream.proxy(once)
        first = await ask(proxy)
        assert (first.status, first.body) == (status, b"no")
        assert statuses(once) == [IN_PROGRESS]
        again = await ask(proxy)
        assert (again.status, again.problem) == (409, "in-flight")
        assert len(upstream.requests) == 1

    with_upstream(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\nno" % status)(main)


def a_silent_one(reader, writer):
    return reader.read()


NO_ANSWER = {
    "closed": (CLOSE, 502, "upstream-no-answer"),
    "half a head": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent", 502, "upstream-no-answer"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", 502, "upstream-no-answer"),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 502, "upstream-no-answer"),
    "length and chunks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        502,
        "upstream-no-answer",
    ),
    "another protocol": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", 502, "upstream-no-answer"),
    "a status of no server": (b"HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n", 502, "upstream-no-answer"),
    "a header with a control": (
        b"HTTP/1.1 200 OK\r\nX-A: \x01\r\nContent-Length: 0\r\n\r\n",
        502,
        "upstream-no-answer",
    ),
    "a bad name": (b"HTTP/1.1 200 OK\r\nX(A): 1\r\nContent-Length: 0\r\n\r\n", 502, "upstream-no-answer"),
    "an endless head": (b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 200_000, 502, "upstream-no-answer"),
    "silence": (a_silent_one, 504, "upstream-silent"),
}


@pytest.mark.parametrize("case", NO_ANSWER)
def test_a_key_whose_request_got_no_answer_stays_claimed(once, case):
    answer, status, problem = NO_ANSWER[case]

    async def main(upstream):
        proxy = upstream.proxy(once, silence=0.5 if status == 504 else 60)
        first = await ask(proxy)
        assert (first.status, first.problem) == (status, problem)
        assert statuses(once) == [IN_PROGRESS]
        assert (await ask(proxy)).status == 409
        assert len(upstream.requests) == 1

    with_upstream(answer)(main)


TORN = {
    "length": b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 9\r\n\r\nabc",
    "chunks": b"HTTP/1.1 201 Created\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "no chunk": b"HTTP/1.1 201 Created\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "long chunk": b"HTTP/1.1 201 Created\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("case", TORN)
def test_an_answer_that_is_broken_off_never_looks_whole_and_is_not_recorded(once, case):
    async def main(upstream):
        first = await ask(upstream.proxy(once))
        whole = first.sent and not first.sent[-1].get("more_body", False) and len(first.sent) > 1
        assert not whole or first.status == 502  # nothing was sent before, so a problem still could be
        assert statuses(once) == [IN_PROGRESS]

    with_upstream(TORN[case])(main)


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


def test_after_the_lease_the_request_goes_out_again_with_the_same_key(once):
    async def main(upstream):
        proxy = upstream.proxy(once, lease=0.3, wait=60)
        assert (await ask(proxy)).status == 502
        second = await ask(proxy)
        assert (second.status, second.body) == (201, b"{}")
        first, again = upstream.requests
        assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
        assert [one.headers["onceward-attempt"] for one in upstream.requests] == ["1", "2"]
        assert int(first.headers["onceward-fence"]) < int(again.headers["onceward-fence"])

    with_upstream(CLOSE, OK)(main)


def test_a_connection_that_is_refused_gives_the_key_back(once):
    async def main():
        proxy = Proxy(f"http://127.0.0.1:{free_port()}", once, Rules(), name="http")
        first = await ask(proxy)
        assert (first.status, first.problem) == (502, "upstream-unreachable")
        assert first.headers["retry-after"] == "1"
        assert statuses(once) == [RELEASED]
        assert (await ask(proxy)).status == 502

    asyncio.run(main())


BODIES = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\nTrailer: dropped\r\n\r\n",
    "the end": b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nabc",
    "after interim answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
}


@pytest.mark.parametrize("case", BODIES)
def test_an_answer_is_passed_on_and_repeated_however_it_is_framed(once, case):
    async def main(upstream):
        proxy = upstream.proxy(once)
        first, again = await ask(proxy), await ask(proxy)
        assert (first.status, first.body) == (again.status, again.body) == (200, b"abc")
        assert again.headers["idempotent-replayed"] == "true"
        assert not {"transfer-encoding", "connection", "trailer"} & first.headers.keys()
        assert statuses(once) == [COMPLETED]
        assert len(upstream.requests) == 1

    with_upstream(BODIES[case])(main)


ACCEPTED = [("br, gzip;q=0.5", True), ("*", True), ("gzip; q=0", False), ("GZIP", True), ("br, *;q=0.0", False)]


@pytest.mark.parametrize(("accepted", "taken"), [*ACCEPTED, (None, False)])
def test_a_compressed_answer_is_repeated_as_its_client_reads_it(once, accepted, taken):
    async def main(upstream):
        proxy = upstream.proxy(once)
        first = await ask(proxy, headers=[*KEY, (b"accept-encoding", b"gzip")])
        assert (first.headers["content-encoding"], first.body) == ("gzip", body)
        lines = [] if accepted is None else [(b"accept-encoding", accepted.encode())]
        again = await ask(proxy, headers=KEY + lines)
        assert again.headers["idempotent-replayed"] == "true"
        assert again.headers["content-length"] == str(len(again.body))
        assert again.body == (body if taken else b'{"paid":true}')
        assert ({"content-encoding", "etag"} & again.headers.keys() == set()) is not taken

    body = gzip.compress(b'{"paid":true}')
    head = b'HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nETag: "a"\r\nContent-Length: %d\r\n\r\n' % len(body)
    with_upstream(head + body)(main)


@pytest.mark.parametrize(
    "data",
    [b"no gzip", gzip.compress(b"a") + b"more", gzip.compress(bytes(1 << 25))[:-4]],
    ids=["none", "more", "torn"],
)
def test_an_answer_that_cannot_be_decoded_is_repeated_as_it_was(once, data):
    async def main(upstream):
        proxy = upstream.proxy(once)
        assert [(await ask(proxy)).body for _ in range(2)] == [data] * 2

    with_upstream(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(data) + data)(main)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_ends_with_its_head(once, status):
    async def main(upstream):
        proxy = upstream.proxy(once)
        for headers in KEY, [(b"idempotency-key", b"l")]:
            client = await ask(proxy, headers=headers)
            assert (client.status, client.body) == (status, b"")
            assert "content-length" not in client.headers
        assert upstream.connections == 1  # it could be used again

    with_upstream(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)(main)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("PUT", 204), ("PUT", 304)])
def test_a_body_that_must_not_be_is_no_answer_to_another(once, method, status):
    async def with_body(reader, writer):
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 38\r\n\r\n" % status)
        await writer.drain()
        await gone.wait()
        writer.write(b"HTTP/1.1 299 X\r\nContent-Length: 0\r\n\r\n")

    async def main(upstream):
        proxy = upstream.proxy(once)
        client = await ask(proxy, headers=[], method=method)
        assert (client.status, client.body) == (status, b"")
        other = asyncio.ensure_future(ask(proxy))
        await asyncio.sleep(0.1)
        gone.set()
        assert (await other).status == 201

    gone = asyncio.Event()
    with_upstream(with_body, OK)(main)


def test_what_an_upstream_says_unasked_answers_nobody(once):
    async def main(upstream):
        proxy = upstream.proxy(once)
        assert (await ask(proxy)).status == 201
        await asyncio.sleep(0.1)
        assert (await ask(proxy, headers=[(b"idempotency-key", b"l")])).status == 201
        assert upstream.connections == 2

    with_upstream(OK + OK, OK)(main)


def test_the_answer_of_a_request_whose_client_left_is_recorded(once):
    async def slow(reader, writer):
        begun.set()
        await release.wait()
        writer.write(OK)

    async def main(upstream):
        nonlocal begun, release
        begun, release = asyncio.Event(), asyncio.Event()
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

    begun = release = None
    with_upstream(slow)(main)


def test_without_a_key_a_client_that_leaves_ends_its_request(once):
    async def slow(reader, writer):
        begun.set()
        assert await reader.read() == b""  # the proxy has closed the connection
        ended.set()

    async def main(upstream):
        nonlocal begun, ended
        begun, ended = asyncio.Event(), asyncio.Event()
        client = Client()
        request = asyncio.create_task(upstream.proxy(once)(scope([], "GET"), client.receive, client.send))
        await begun.wait()
        client.gone.set()
        await request
        await ended.wait()
        assert client.problem == "unreadable"

    begun = ended = None
    with_upstream(slow)(main)


# --- bodies ---------------------------------------------------------------------------------------------------------


def test_a_request_without_a_key_streams_both_ways(once):
    async def echo(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while size := int(await reader.readline(), 16):
            part = await reader.readexactly(size + 2)
            writer.write(b"%x\r\n%b" % (size, part))
        await reader.readline()
        writer.write(b"0\r\n\r\n")

    async def main(upstream):
        parts, sent = asyncio.Queue(), []

        async def send(message):
            sent.append(message)

        proxy = upstream.proxy(once)
        request = asyncio.create_task(proxy(scope([(b"transfer-encoding", b"chunked")], "PUT"), parts.get, send))
        for part in b"one", b"two":
            parts.put_nowait({"type": "http.request", "body": part, "more_body": True})
            while not any(message.get("body") == part for message in sent):
                await asyncio.sleep(0.01)
        parts.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        await request
        assert not sent[-1]["more_body"]

    with_upstream(raw=echo)(main)


@pytest.mark.parametrize("framing", [[], [(b"content-length", b"5")], [(b"transfer-encoding", b"chunked")]])
def test_a_body_without_a_key_arrives_whole_however_it_is_framed(once, framing):
    async def main(upstream):
        proxy = upstream.proxy(once, Rules(Route(required=False)))
        assert (await ask(proxy, b"abc", b"", b"de", headers=framing)).status == 201
        (request,) = upstream.requests
        assert request.body == b"abcde"
        assert "idempotency-key" not in request.headers

    with_upstream()(main)


def test_an_early_answer_ends_an_upload(once):
    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async def main(upstream):
        proxy = upstream.proxy(once)
        client = Client(b"a")
        client.pending[0]["more_body"] = True  # its end never comes
        await proxy(scope([(b"transfer-encoding", b"chunked")], "PUT"), client.receive, client.send)
        assert (client.status, client.body) == (413, b"")

    with_upstream(raw=refuse)(main)


@pytest.mark.parametrize("method", ["POST", "PUT"])  # with a key, and without
def test_a_client_that_is_silent_in_its_body_is_given_up(once, method):
    async def main(upstream):
        client = Client(b"a")
        client.pending[0]["more_body"] = True
        headers = [*KEY, (b"content-length", b"2")]
        await upstream.proxy(once, silence=0.2)(scope(headers, method), client.receive, client.send)
        assert (client.status, client.problem) == (400, "unreadable")
        assert upstream.requests == []

    with_upstream()(main)


# --- what does not pass ---------------------------------------------------------------------------------------------

REFUSED = {
    "CONNECT": (scope([], "CONNECT"), 501),
    "TRACE": (scope([], "TRACE"), 501),
    "WebSocket": (scope([(b"connection", b"keep-alive, Upgrade"), (b"upgrade", b"WebSocket")], "GET"), 501),
    "two framings": (scope([(b"content-length", b"1"), (b"transfer-encoding", b"chunked")], "PUT"), 400),
    "chunks in HTTP/1.0": (scope([(b"transfer-encoding", b"chunked")], "PUT", http_version="1.0"), 400),
    "dots": (scope([], "GET", raw_path=b"/a/../orders"), 400),
    "dots before a parameter": (scope([], "GET", raw_path=b"/a/..;b/orders"), 400),
    "dots between backslashes": (scope([], "GET", raw_path=b"/a%5c..%5corders"), 400),
    "a backslash": (scope([], "GET", raw_path=b"/a\\orders"), 400),
    "a fragment": (scope([], "GET", raw_path=b"/orders#a"), 400),
    "no slash": (scope([], "GET", raw_path=b"orders"), 400),
    "a URL of no server": (scope([], "PUT", raw_path=b"a%3A//b://c/orders"), 400),
    "a slash in a server's name": (scope([], "PUT", raw_path=b"http://a%2Fb/orders"), 400),
    "a user before a server's name": (scope([], "PUT", raw_path=b"http://a@b/orders"), 400),
    "a line break": (scope([], "PUT", raw_path=b"/orders%0a"), 400),
    "hidden dots": (scope([], "GET", raw_path=b"/a/%2E%2e/orders"), 400),
}


@each("case", REFUSED)
def test_a_request_that_two_could_read_in_two_ways_is_refused(once, case):
    given, status = REFUSED[case]

    async def main(upstream):
        client = Client()
        await upstream.proxy(once)(dict(given), client.receive, client.send)
        assert client.status == status
        assert upstream.requests == []

    with_upstream()(main)


@each("path", [b"/orders;a=b", b"/orders%3Ba", b"/a%2Forders", b"/log/in;a=b", b"/x%5cpay"])
def test_a_path_that_only_some_servers_see_among_the_routes_is_refused(once, path):
    rules = Rules(*map(Route, ("/orders", "/a/{name}", "/x/*", "/log/*")), exempt=["/log/in"])
    plain = scope([], "POST", raw_path=path)

    async def main(upstream):
        client = Client()
        await upstream.proxy(once, rules)(plain, client.receive, client.send)
        assert client.status == 400
        assert upstream.requests == []

    with_upstream()(main)


def test_the_rules_see_the_path_that_is_sent(once):
    async def main(upstream):
        proxy = upstream.proxy(once, Rules(Route("/orders")))
        found = await ask(proxy, headers=[], raw_path=b"http://front.example/orders", path="http://front.example/other")
        assert found.status == 400  # it is guarded, and has no key
        assert upstream.requests == []

    with_upstream()(main)


def test_a_proxy_that_is_its_own_upstream_says_so(once):
    async def main(upstream):
        proxy = upstream.proxy(once)
        await ask(proxy)
        via = upstream.requests[0].headers["via"].encode()
        assert (await ask(proxy, headers=[(b"via", b"1.1 other, " + via)])).status == 508

    with_upstream()(main)


def test_its_own_health_is_answered_without_the_upstream(once):
    async def main(upstream):
        client = await ask(upstream.proxy(once), headers=[], method="GET", path="/healthz")
        assert (client.status, client.body) == (200, b'{"status":"ok"}')
        assert upstream.requests == []
        await ask(upstream.proxy(once, health=None), headers=[], method="GET", path="/healthz")
        assert [request.target for request in upstream.requests] == ["/healthz"]

    with_upstream()(main)


@each(
    "options",
    [
        {"upstream": "ftp://a"},
        {"upstream": "http://"},
        {"upstream": "http://user:secret@a"},
        {"upstream": "http://a/?q"},
        {"upstream": "http://a:99999"},
        {"upstream": "http://" + "a" * 70},
        {"silence": 0},
        {"health": "healthz"},
        {"trusted_proxies": ["localhost"]},
        {"rules": None},
        {"name": None},
    ],
)
def test_options_that_make_no_sense_are_refused(once, options):
    with pytest.raises((TypeError, ValueError)) as refused:
        Proxy(**{"upstream": "http://a", "once": once, "rules": Rules(), "name": "http", **options})
    assert "secret" not in str(refused.value)


# --- headers --------------------------------------------------------------------------------------------------------


def test_the_upstream_gets_a_key_of_its_own(once):
    async def main(upstream):
        sent = [*KEY, (b"onceward-attempt", b"9"), (b"onceward_fence", b"9"), (b"idempotency_key", b"x")]
        await ask(upstream.proxy(once), headers=sent)
        (request,) = upstream.requests
        assert request.headers["idempotency-key"] == f'"{derived_key("http:k:*", ("upstream",))}"'
        assert request.headers["onceward-attempt"] == "1"
        assert [name for name, _ in request.lines].count("idempotency-key") == 1
        assert not any("_" in name for name, _ in request.lines)

    with_upstream()(main)


def test_headers_of_the_connection_stay_behind(once):
    headers = [
        *KEY,
        (b"connection", b"close, x-hop"),
        (b"x-hop", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"trailers"),
        (b"expect", b"100-continue"),
        (b"proxy-authorization", b"Basic x"),
        (b"accept", b"a"),
        (b"accept", b"b"),
    ]

    async def main(upstream):
        client = await ask(upstream.proxy(once), headers=headers)
        names = [name for name, _ in upstream.requests[0].lines]
        assert not {"connection", "x-hop", "keep-alive", "te", "expect", "proxy-authorization"} & set(names)
        assert names.count("accept") == 2
        assert not {"connection", "x-back", "keep-alive", "proxy-authenticate"} & client.headers.keys()
        assert client.headers["x-kept"] == "1"

    answer = (
        b"HTTP/1.1 200 OK\r\nConnection: X-Back\r\nX-Back: 1\r\nKeep-Alive: 1\r\nX-Kept: 1\r\nContent-Length: 0\r\n\r\n"
    )
    with_upstream(answer)(main)


FORGED = [
    (b"host", b"shop.example"),
    (b"x-forwarded-for", b"6.6.6.6"),
    (b"x_forwarded_for", b"6.6.6.6"),
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-host", b"evil.example"),
    (b"x-real-ip", b"6.6.6.6"),
    (b"forwarded", b"for=6.6.6.6"),
]


def test_where_a_request_comes_from_is_told_and_not_believed(once):
    async def main(upstream):
        await ask(upstream.proxy(once), headers=FORGED, method="GET")
        found = upstream.requests[0].headers
        assert found["host"] == upstream.url.removeprefix("http://")
        assert (found["x-forwarded-for"], found["x-forwarded-proto"]) == ("127.0.0.1", "http")
        assert found["x-forwarded-host"] == "shop.example"
        assert not {"x-real-ip", "forwarded", "x_forwarded_for"} & found.keys()

    with_upstream()(main)


def test_a_trusted_proxy_in_front_is_believed(once):
    async def main(upstream):
        await ask(upstream.proxy(once, trusted_proxies=["127.0.0.1"]), headers=FORGED, method="GET")
        found = upstream.requests[0]
        assert found.headers["x-forwarded-for"] == "6.6.6.6, 127.0.0.1"
        assert (found.headers["x-forwarded-proto"], found.headers["x-forwarded-host"]) == ("https", "evil.example")
        assert [value for name, value in found.lines if name == "forwarded"] == [
            "for=6.6.6.6",
            "for=127.0.0.1;proto=http",
        ]
        assert found.headers["x-real-ip"] == "6.6.6.6"

    with_upstream()(main)


@each(
    ("raw", "query", "base", "target"),
    [
        (b"/a%20b/%2Fc", b"q=%20&r", "", "/a%20b/%2Fc?q=%20&r"),
        (b"/a", b"", "/v1/", "/v1/a"),
        (b"http://evil.example/a", b"b", "", "/a?b"),
        (b"*", b"", "", "*"),
    ],
)
def test_the_target_passes_as_it_was_sent(once, raw, query, base, target):
    async def main(upstream):
        await ask(upstream.proxy(once, base=base), headers=[], method="OPTIONS", raw_path=raw, query=query)
        assert upstream.requests[0].target == target

    with_upstream()(main)


def test_an_answer_that_came_before_its_connection_broke_is_whole(once):
    async def early(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\nContent-Length: 100000\r\n\r\n" + 100_000 * b"a")
        await writer.drain()
        linger = struct.pack("ii", 1, 0)  # a close sends RST, as it does when a part of the request is not read
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def main(upstream):
        async def slow(message):
            await asyncio.sleep(0.2)
            await client.send(message)

        client = Client()
        await upstream.proxy(once)(scope([], "PUT"), client.receive, slow)
        assert (client.status, len(client.body)) == (413, 100_000)

    with_upstream(raw=early)(main)

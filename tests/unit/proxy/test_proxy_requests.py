"""What the proxy passes on of a request, and what it refuses."""

import asyncio

import pytest

from onceward.keys.ledger_keys import derived_key
from onceward.proxy import Proxy
from onceward.web import Route
from tables import each
from web.asgi import KEY, Client, ask, scope
from web.calls import Rules
from web.upstream import Scripted


async def test_a_request_without_a_key_streams_both_ways(once):
    async def echo(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while size := int(await reader.readline(), 16):
            chunk = await reader.readexactly(size + 2)
            writer.write(b"%x\r\n%b" % (size, chunk))
        await reader.readline()
        writer.write(b"0\r\n\r\n")

    async with Scripted(raw=echo) as upstream:
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


@pytest.mark.parametrize("method", ["POST", "PUT"])  # with a key, and without
async def test_a_client_that_is_silent_in_its_body_is_given_up(once, method):
    async with Scripted() as upstream:
        client = Client(b"a")
        client.pending[0]["more_body"] = True
        headers = [*KEY, (b"content-length", b"2")]
        await upstream.proxy(once, silence=0.2)(scope(headers, method), client.receive, client.send)
        assert (client.status, client.problem) == (400, "unreadable")
        assert upstream.requests == []


REFUSED = {
    "CONNECT": (scope([], "CONNECT"), 501),
    "WebSocket": (scope([(b"connection", b"keep-alive, Upgrade"), (b"upgrade", b"WebSocket")], "GET"), 501),
    "two framings": (scope([(b"content-length", b"1"), (b"transfer-encoding", b"chunked")], "PUT"), 400),
    "chunks in HTTP/1.0": (scope([(b"transfer-encoding", b"chunked")], "PUT", http_version="1.0"), 400),
    "dots": (scope([], "GET", raw_path=b"/a/../orders"), 400),
    "dots before a parameter": (scope([], "GET", raw_path=b"/a/..;b/orders"), 400),
    "a backslash": (scope([], "GET", raw_path=b"/a\\orders"), 400),
    "no slash": (scope([], "GET", raw_path=b"orders"), 400),
    "a slash in a server's name": (scope([], "PUT", raw_path=b"http://a%2Fb/orders"), 400),
    "a user before a server's name": (scope([], "PUT", raw_path=b"http://a@b/orders"), 400),
    "a line break": (scope([], "PUT", raw_path=b"/orders%0a"), 400),
    "hidden dots": (scope([], "GET", raw_path=b"/a/%2E%2e/orders"), 400),
}


@each("case", REFUSED)
async def test_a_request_that_two_could_read_in_two_ways_is_refused(once, case):
    given, status = REFUSED[case]
    async with Scripted() as upstream:
        client = Client()
        await upstream.proxy(once)(dict(given), client.receive, client.send)
        assert client.status == status
        assert upstream.requests == []


@each("path", [b"/orders;a=b", b"/orders%3Ba", b"/a%2Forders", b"/x%5cpay"])
async def test_a_path_that_only_some_servers_see_among_the_routes_is_refused(once, path):
    rules = Rules(*map(Route, ("/orders", "/a/{name}", "/x/*")))
    plain = scope([], "POST", raw_path=path)
    async with Scripted() as upstream:
        client = Client()
        await upstream.proxy(once, rules)(plain, client.receive, client.send)
        assert client.status == 400
        assert upstream.requests == []


async def test_a_proxy_that_is_its_own_upstream_says_so(once):
    async with Scripted() as upstream:
        proxy = upstream.proxy(once)
        await ask(proxy)
        via = upstream.requests[0].headers["via"].encode()
        assert (await ask(proxy, headers=[(b"via", b"1.1 other, " + via)])).status == 508


async def test_its_own_health_is_answered_without_the_upstream(once):
    async with Scripted() as upstream:
        client = await ask(upstream.proxy(once), headers=[], method="GET", path="/healthz")
        assert (client.status, client.body) == (200, b'{"status":"ok"}')
        assert upstream.requests == []
        await ask(upstream.proxy(once, health=None), headers=[], method="GET", path="/healthz")
        assert [request.target for request in upstream.requests] == ["/healthz"]


UPSTREAMS = ["ftp://a", "http://", "http://user:secret@a"]
OPTIONS = [{"silence": -1}, {"trusted_proxies": ["localhost"]}, {"rules": None}, {"name": None}]


@each("options", [*({"upstream": one} for one in UPSTREAMS), *OPTIONS])
def test_options_that_make_no_sense_are_refused(once, options):
    with pytest.raises((TypeError, ValueError)) as refused:
        Proxy(**{"upstream": "http://a", "once": once, "rules": Rules(), "name": "http", **options})
    assert "secret" not in str(refused.value)


async def test_the_upstream_gets_a_key_of_its_own(once):
    async with Scripted() as upstream:
        sent = [*KEY, (b"onceward-attempt", b"9"), (b"onceward-fence", b"9"), (b"idempotency_key", b"x")]
        await ask(upstream.proxy(once), headers=sent)
        (request,) = upstream.requests
        assert request.headers["idempotency-key"] == f'"{derived_key("http:k:*", ("upstream",))}"'
        assert request.headers["onceward-attempt"] == "1"
        names = [name for name, _ in request.lines]
        assert [names.count(name) for name in ("idempotency-key", "onceward-attempt", "onceward-fence")] == [1, 1, 1]
        assert not any("_" in name for name in names)


async def test_headers_of_the_connection_stay_behind(once):
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
    answer = (
        b"HTTP/1.1 200 OK\r\nConnection: X-Back\r\nX-Back: 1\r\nKeep-Alive: 1\r\nX-Kept: 1\r\nContent-Length: 0\r\n\r\n"
    )
    async with Scripted(answer) as upstream:
        client = await ask(upstream.proxy(once), headers=headers)
        names = [name for name, _ in upstream.requests[0].lines]
        assert not {"connection", "x-hop", "keep-alive", "te", "expect", "proxy-authorization"} & set(names)
        assert names.count("accept") == 2
        assert not {"connection", "x-back", "keep-alive", "proxy-authenticate"} & client.headers.keys()
        assert client.headers["x-kept"] == "1"


FORGED = [
    (b"host", b"shop.example"),
    (b"x-forwarded-for", b"6.6.6.6"),
    (b"x_forwarded_for", b"6.6.6.6"),
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-host", b"evil.example"),
    (b"x-real-ip", b"6.6.6.6"),
    (b"forwarded", b"for=6.6.6.6"),
]


async def test_where_a_request_comes_from_is_told_and_not_believed(once):
    async with Scripted() as upstream:
        await ask(upstream.proxy(once), headers=FORGED, method="GET")
        found = upstream.requests[0].headers
        assert found["host"] == upstream.url.removeprefix("http://")
        assert (found["x-forwarded-for"], found["x-forwarded-proto"]) == ("127.0.0.1", "http")
        assert found["x-forwarded-host"] == "shop.example"
        assert not {"x-real-ip", "forwarded", "x_forwarded_for"} & found.keys()


async def test_a_trusted_proxy_in_front_is_believed(once):
    async with Scripted() as upstream:
        await ask(upstream.proxy(once, trusted_proxies=["127.0.0.1"]), headers=FORGED, method="GET")
        found = upstream.requests[0]
        assert found.headers["x-forwarded-for"] == "6.6.6.6, 127.0.0.1"
        assert (found.headers["x-forwarded-proto"], found.headers["x-forwarded-host"]) == ("https", "evil.example")
        assert "forwarded" not in found.headers
        assert found.headers["x-real-ip"] == "6.6.6.6"


@each(
    ("raw", "query", "base", "target"),
    [
        (b"/a%20b/%2Fc", b"q=%20&r", "", "/a%20b/%2Fc?q=%20&r"),
        (b"/a", b"", "/v1/", "/v1/a"),
        (b"http://evil.example/a", b"b", "", "/a?b"),
        (b"*", b"", "", "*"),
    ],
)
async def test_the_target_passes_as_it_was_sent(once, raw, query, base, target):
    async with Scripted() as upstream:
        await ask(upstream.proxy(once, base=base), headers=[], method="OPTIONS", raw_path=raw, query=query)
        assert upstream.requests[0].target == target

"""Who gets into the service, and how much of it: tokens, TLS, Unix sockets, limits, and what refuses to start."""

import asyncio
import contextlib
import json
import socket
import stat
from functools import partial
from pathlib import Path

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from commands.command_line import Cli
from onceward import Once
from onceward.service import service
from onceward.service.heads import TimedHeads
from onceward.service.tokens import Tokens, generate_token, read
from servers.needs import certificate
from tables import each
from web.services import PATIENCE, Api, new_id, serving


def onceward(*arguments):
    """Run a command to its end."""
    done = Cli(Path.cwd()).run(*arguments, timeout=PATIENCE)
    done.stdout = done.stdout.decode()
    return done


def new_token(path, name, *options):
    done = onceward("token", name, "--tokens", str(path), *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A service with tokens."""
    folder = tmp_path_factory.mktemp("tokens")
    path = folder / "tokens.txt"
    tokens = {
        "worker": new_token(path, "worker", "--namespace", "shop", "--namespace", "mail"),
        "reader": new_token(path, "reader", "--namespace", "*", "--action", "look"),
        "admin": new_token(path, "admin", "--namespace", "*", "--action", "*"),
    }
    with serving(f"sqlite:///{folder}/ledger.db", "--tokens", str(path)) as service:
        service.path, service.tokens = path, tokens
        yield service


def test_a_token_allows_its_actions_in_its_namespaces(guarded):
    worker, reader, admin = (Api(guarded.place, "shop", guarded.tokens[name]) for name in ("worker", "reader", "admin"))
    claim = worker.claimed("k1")
    assert worker("complete", **claim, result=1).status == 200
    assert worker("look", key="k1").problem == "forbidden"
    assert reader("look", key="k1").body["worker"] == "worker"
    assert reader("claim", key="k2", id=new_id()).problem == "forbidden"
    assert admin("look", key="k1").status == 200
    worker.namespace = "bank"
    refused = worker("claim", key="k1", id=new_id())
    assert (refused.status, refused.problem) == (403, "forbidden")


@each(
    "token", [None, "", "onceward-wrong", "x" * 5000, "sha256:" + "0" * 64, "gr\xfc\xdfe", "{worker}x", "{worker:.20}"]
)
def test_without_a_known_token_nobody_gets_in(guarded, token):
    token = token and token.format(worker=guarded.tokens["worker"])
    refused = Api(guarded.place, "shop", token)("claim", key="k", id=new_id())
    assert (refused.status, refused.problem) == (401, "unknown-client")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    api = Api(guarded.place)  # health and the description need no token
    assert api.send("GET", "/healthz").body == {"status": "ok"}
    assert api.send("GET", "/openapi.json").body["openapi"].startswith("3.1")


def test_a_token_is_neither_in_the_file_nor_in_the_log(guarded):
    Api(guarded.place, "shop", guarded.tokens["worker"])("claim", key="k", id=new_id())
    Api(guarded.place, "shop", "onceward-wrong-secret")("claim", key="k", id=new_id())
    told = guarded.path.read_text() + "".join(guarded.said)
    assert not any(token in told for token in guarded.tokens.values())
    assert "wrong-secret" not in told
    assert stat.S_IMODE(guarded.path.stat().st_mode) == 0o600


def test_a_wrong_line_does_not_keep_a_deleted_token_alive(tmp_path, caplog):
    path = tmp_path / "tokens.txt"
    (one, first), (two, second) = (generate_token(name, ["shop"], ["claim"]) for name in ("one", "two"))
    path.write_text(f"{first}\n{second}\n")
    tokens = Tokens(str(path))
    assert tokens.grant(one).name == "one"
    path.write_text(f"nonsense\n{second}\n")
    assert tokens.grant(one) is None
    assert tokens.grant(two).name == "two"
    path.unlink()
    assert [tokens.grant(two).name for _ in range(2)] == ["two", "two"]
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert ["tokens.txt:1" in told[0], "No such file" in told[1], len(told)] == [True, True, 2]
    path.write_text(f"{first}\n")
    assert (tokens.grant(one).name, tokens.grant(two)) == ("one", None)


@each(
    "line",
    ["a", "a shop claim sha256:00", "a shop steal sha256:" + "0" * 64, "a sh:op claim sha256:" + "0" * 64, "ä b claim sha256:" + "0" * 64],
)  # fmt: skip
def test_a_wrong_line_in_the_file_is_refused(tmp_path, line):
    path = tmp_path / "tokens.txt"
    path.write_text(f"# a comment\n\n{line}\n")
    with pytest.raises(ValueError, match=r"tokens.txt:3|name="):
        read(str(path))


@each(
    ("options", "why"),
    [
        (["--host", "0.0.0.0"], "needs --tokens"),
        (["--certificate", "a.pem"], "give both"),
        (["--tokens", "absent.txt"], "absent.txt"),
        (["--certificate", "absent.pem", "--private-key", "absent.pem"], "No such file"),
    ],
)
def test_what_is_unsafe_or_cannot_work_does_not_start(tmp_path, options, why):
    done = onceward("serve", "--store", f"sqlite:///{tmp_path}/ledger.db", "--port", "0", *options)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_tls_is_spoken_with_a_certificate(tmp_path):
    chain, key = certificate(tmp_path)
    options = ["--certificate", str(chain), "--private-key", str(key)]
    with serving(f"sqlite:///{tmp_path}/ledger.db", *options) as service:
        assert service.place.startswith("https://")
        api = Api(service.place, trust=str(chain))
        assert api("complete", **api.claimed("k"), result=1).status == 200
        with pytest.raises(OSError):
            Api(service.place.replace("https", "http"))("look", key="k")


def test_what_a_client_sends_cannot_forge_a_line_of_the_log(guarded):
    api = Api(guarded.place, "shop", guarded.tokens["worker"])
    api.send("POST", "/v1/shop/a%0A2026-01-01%20worker%20POST", json.dumps({}).encode())
    assert not any(line.startswith("2026-01-01 worker") for line in guarded.said)


def test_a_body_that_never_ends_is_cut_off(guarded):
    host, _, port = guarded.place.partition("://")[2].partition(":")
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=PATIENCE)) as connection:
        head = f"POST /v1/shop/claim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {guarded.tokens['worker']}\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        for _ in range(17):  # one more than it takes
            connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        assert b" 413 " in connection.recv(65536)


async def test_a_head_that_never_comes_is_not_waited_for(once_app, monkeypatch):
    monkeypatch.setattr(TimedHeads, "within", 0.2)
    config = Config(once_app, log_level="critical", ws="none", lifespan="off")
    config.load()
    protocol = partial(TimedHeads, config=config, server_state=ServerState(), app_state={})
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()
        for sent in (
            b"",
            b"GET /healthz HTTP/1.1\r\nHost: loc",
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET",
        ):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(sent)
            said = await asyncio.wait_for(reader.read(), PATIENCE)
            assert said.startswith(b"HTTP/1.1 200") or b"\r\n\r\n" not in sent
            writer.close()


@pytest.fixture
def once_app():
    with contextlib.closing(Once("memory:")) as once:
        yield service(once)


async def test_a_request_that_a_stopping_service_gives_up_is_to_be_sent_again(once_app):
    begun, sent = asyncio.Event(), []

    async def receive():  # the body does not come
        begun.set()
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/shop/claim", "query_string": b"", "headers": headers}
    request = asyncio.ensure_future(once_app(scope, receive, send))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    once_app.state.stopping.set()
    request.cancel()
    await request
    assert (sent[0]["status"], dict(sent[0]["headers"])[b"retry-after"]) == (503, b"1")

"""Options that do not fit are told when a server starts."""

import asyncio
import os
import subprocess
import sys

import pytest
from starlette.applications import Starlette

from onceward.web import AsgiIdempotency, Scope
from places import SOURCES, WORKERS
from servers.needs import free_port
from web.calls import Rules, call, post

pytestmark = pytest.mark.sampled(app=1)


@pytest.mark.slow
@pytest.mark.parametrize("app", ["starlette", "fastapi"])
def test_a_lease_that_is_too_short_fails_when_the_server_starts(app, tmp_path):
    port = str(free_port())
    command = [sys.executable, "-m", "uvicorn", "--port", port, f"web_asgi_wrong:{app}"]
    paths = os.pathsep.join(map(str, (SOURCES, WORKERS)))
    environment = os.environ | {"LEASE": "0.00001", "PYTHONPATH": paths, "LEDGER": f"sqlite:///{tmp_path}/ledger.db"}
    server = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert server.returncode != 0
    assert "lease=1e-05 is too short for sqlite:///" in server.stderr
    assert "Application startup failed" in server.stderr


def test_options_are_told_at_the_start_or_else_at_the_first_request(once):
    app = Starlette()
    app.add_middleware(AsgiIdempotency, once=once, rules=Rules())
    for begin in (start, lambda app: call(app, post("/"))):
        with pytest.raises(TypeError, match="name= is missing"):
            begin(app)
    with pytest.raises(TypeError, match="name= is missing"):
        AsgiIdempotency(None, once, Rules())


def test_asgi_servers_authenticate_nobody(once):
    with pytest.raises(ValueError, match=r"Scope\.HOST: ASGI servers authenticate nobody"):
        AsgiIdempotency(None, once, Rules(scope=Scope.HOST), name="shop")


def start(app):
    """Run an application's lifespan, as a server does."""

    async def main():
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        sent = []

        async def receive():
            return next(messages)

        async def send(message):
            sent.append(message["type"])

        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(main())

"""Ledgers on servers in a process that lacks what Windows lacks, such as poll()."""

import os
import subprocess
import sys
import uuid

import pytest

from places import ROOT, SOURCES

USE = """
import asyncio, sys, threading
import psycopg, pymysql, asyncmy, redis, redis.asyncio, ssl, subprocess, tempfile
import posixless
posixless.hide()
from onceward import Once
once = Once(sys.argv[1], name="n", lease=60, on_busy=60.0)
assert [once.run("k", lambda: "made") for _ in range(3)] == ["made"] * 3
assert asyncio.run(once.run_async("awaited", asyncio.sleep, 0, "made")) == "made"
claim, told = once.acquire("busy"), []
waiter = threading.Thread(target=lambda: told.append(once.run("busy", int)))
waiter.start()
claim.complete("done")
waiter.join()
assert told == ["done"]
once.close()
"""


@pytest.mark.sampled("postgres15")
@pytest.mark.parametrize("kind", ["postgres15", "mariadb", "redis"])
def test_a_ledger_on_a_server_works(request, kind):
    server, name = request.getfixturevalue(kind), f"posixless_{uuid.uuid4().hex[:12]}"
    url = {
        "postgres15": lambda: f"{server.url}?schema={name}",
        "mariadb": lambda: server.database(name),
        "redis": lambda: f"{server.url}?prefix={name}",
    }[kind]()
    done = subprocess.run(
        [sys.executable, "-c", USE, url],
        env={**os.environ, "PYTHONPATH": f"{SOURCES}:{ROOT / 'tests' / 'systems'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""A Once, and what it guards, in a process to which pickle or cloudpickle brings it, and in one that lacks what Windows lacks."""

import json
import os
import pickle
import platform
import subprocess
import sys
import uuid

import cloudpickle
import pytest
from prometheus_client import CollectorRegistry

from onceward import Busy, Once
from onceward.observe.cloudwatch import EmbeddedMetrics
from onceward.observe.events import Event
from onceward.observe.json_lines import JsonLines
from onceward.observe.otel_metrics import OtelMetrics
from onceward.observe.prometheus import PrometheusMetrics
from onceward.stores import open_store
from places import ROOT, SOURCES
from tables import each

pytestmark = pytest.mark.sampled(url=1)

DRIVER = """
import sys
import cloudpickle
from onceward import Claim, Once

once = Once(sys.argv[1], lease=7)

@once(key="order.id", max_attempts=2)
def charge(order: dict, claim: Claim) -> tuple[str, float]:
    print("charged", order["id"])
    return order["id"], claim.record.lease_until - claim.record.updated_at

charge({"id": "a"})
sys.stdout.flush()
sys.stdout.buffer.write(cloudpickle.dumps(charge).hex().encode())
"""
WORKER = """
import pickle
import sys
charge = pickle.loads(bytes.fromhex(sys.argv[1]))
print([charge({"id": key})[0] for key in "aabb"], charge.key_of({"id": "c"}))
"""


def run(code, argument, folder):
    command = [sys.executable, "driver.py" if code is DRIVER else "-c", *([] if code is DRIVER else [code]), argument]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, schema):
    return "sqlite:///ledger.db" if request.param == "sqlite" else schema


def test_a_function_that_cloudpickle_sends_to_another_process_has_the_same_keys_there(url, tmp_path):
    (tmp_path / "driver.py").write_text(DRIVER)
    said, sent = run(DRIVER, url, tmp_path)
    assert said == "charged a"
    assert run(WORKER, sent, "/") == ["charged b", "['a', 'a', 'b', 'b'] driver.charge:c"]


def test_what_arrives_has_the_same_options_and_shares_one_store(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="shop", observe=[_note], lease=7).using(max_attempts=3)
    first, second = (pickle.loads(pickle.dumps(once)) for _ in range(2))
    assert first.policy == once.policy
    assert first.store is second.store
    assert first.store is not once.store
    claim = first.acquire("k")
    with pytest.raises(Busy):
        second.run("k", len, ())
    assert [event.kind for event in _NOTED if isinstance(event, Event)] == ["claimed", "busy"]
    first.close()
    claim.complete(3)  # its store opens again
    assert second.run("k", len, ()) == 3
    second.close()


_NOTED = []


def _note(event):
    _NOTED.append(event)


def test_observers_that_write_lines_travel_and_those_that_count_in_memory_are_refused(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/ledger.db"
    arrived = pickle.loads(pickle.dumps(Once(url, observe=[JsonLines(keys=False), EmbeddedMetrics("shop", "orders")])))
    batch = arrived.batch(len, key="obj", name="len")
    batch.run(["k"])
    kinds = [json.loads(line).get("kind", "metrics") for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["claimed", "completed", "metrics"]
    arrived.close()
    for counts in (PrometheusMetrics(CollectorRegistry()), OtelMetrics()):
        with pytest.raises(TypeError, match=f"{type(counts).__name__} counts in its own process.*as in Once"):
            pickle.dumps(Once(url, observe=[counts]))


@each(
    ("make", "why"),
    [
        (lambda _: Once("memory:"), "memory: cannot be pickled, because another process"),
        (lambda path: Once(open_store(f"sqlite:///{path}/ledger.db")).using(name="a"), "is an object of this process"),
    ],
)
def test_a_store_that_another_process_would_not_have_is_refused(make, why, tmp_path):
    once = make(tmp_path)
    for pickled in (once, once(key="order", name="charge")(lambda order: order)):
        with pytest.raises(TypeError, match=f"{why}.*make it of a URL"):
            cloudpickle.dumps(pickled)


def test_a_file_is_not_looked_for_on_another_machine(tmp_path, monkeypatch):
    sent = pickle.dumps(Once(f"sqlite:///{tmp_path}/ledger.db"))
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    with pytest.raises(TypeError, match="unpickled on elsewhere, which has another file"):
        pickle.loads(sent)


def test_a_relative_path_arrives_as_the_file_that_it_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    once = Once("sqlite:///ledger%20of%3F.db")
    once.run("k", len, ())
    sent = pickle.dumps(once)
    once.close()
    monkeypatch.chdir("/")
    arrived = pickle.loads(sent)
    assert arrived.run_outcome("k", len, ()).replayed
    arrived.close()


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

"""Servers that stop, fill their disk, start again or fail over under many callers, and clocks that are wrong beside a broker."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_redis_failover import COUNT, LEASE, end, noted, records, wait_for

from faults.processes import freeze, workers
from onceward import Busy, Once, OncewardError, ResultUnavailable
from onceward.core.record import COMPLETED, IN_PROGRESS
from queues.shops import NatsShop, RabbitShop, RedisShop
from servers.mysql import Mariadb
from servers.nats import Nats
from servers.pairs import PAIRS
from servers.postgres import Postgres
from servers.rabbitmq import Rabbitmq
from servers.redis import Redis
from servers.wrong_clocks import wrong_clock
from waiting import until, working
from web.services import new_id, serving

BROKERS = {
    "nats": (Nats, NatsShop),
    "redis": (lambda: Redis(appendonly="yes"), RedisShop),
    "rabbitmq": (Rabbitmq, RabbitShop),
}


@pytest.fixture(params=BROKERS)
def broker(request):
    start, shop = BROKERS[request.param]
    server = start()
    yield server, shop(server)
    server.stop()


class Effects:
    """What was done for each key, and how often a caller was told of an error, after which the key may run again."""

    def __init__(self):
        self.ran, self.doubts, self.done = Counter(), Counter(), set()

    def handle(self, key):
        self.ran[key] += 1
        return key

    def check(self, keys):
        assert self.done == set(keys)
        assert {key: times for key, times in self.ran.items() if times > 1 + self.doubts[key]} == {}


@pytest.mark.sampled("redis")
def test_a_broker_that_stands_still_for_longer_than_the_lease_doubles_nothing(broker, tmp_path):
    server, shop = broker
    once, effects = Once(f"sqlite:///{tmp_path}/ledger.db", lease=1.0, name="shop"), Effects()
    orders = range(24)

    def charge(order):
        time.sleep(0.05)
        effects.handle(order["id"])

    shop.publish(*[{"id": number} for number in orders] * 2)
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(working(shop.worker(once, charge, concurrency=2)))
        until(lambda: len(effects.ran) > 5)
        freeze(server.pid)
        time.sleep(3.0)
        os.kill(server.pid, signal.SIGCONT)
        until(lambda: len(effects.ran) == len(orders) and shop.pending() == 0)
    assert set(effects.ran.values()) == {1}
    once.close()


def test_an_alarm_of_rabbitmq_delays_copies_and_no_acknowledgement(request, monkeypatch, caplog):
    monkeypatch.setattr("onceward.rabbitmq.connection._TIMEOUT", 2.0)
    server, once = Rabbitmq(), Once("memory:", name="shop")
    request.addfinalizer(server.stop)
    shop, ran, over = RabbitShop(server), [], threading.Event()

    def charge(order):
        if order["id"] == 0 and not over.is_set():
            raise ZeroDivisionError
        ran.append(order["id"])

    shop.publish(*[{"id": number} for number in range(9)])
    server.control("set_vm_memory_high_watermark", "absolute", "1")
    with working(shop.worker(once, charge, concurrency=1)):
        until(lambda: len(ran) == 8 and server.held()[shop.orders] == 1)
        until(lambda: caplog.text.count("In an alarm, RabbitMQ takes no messages") > 1)
        over.set()
        server.control("set_vm_memory_high_watermark", "0.9")
        until(lambda: 0 in ran and not any(server.held().values()))
    assert ran.count(0) == 1


@pytest.mark.sampled("nats")
def test_workers_an_hour_fast_and_slow_beside_a_broker_take_each_message_once(broker, faketime, postgres, tmp_path):
    _, shop = broker
    effects = tmp_path / "effects"
    ledger = f"{postgres.url}?table=clocks_{shop.broker}"
    told = (type(shop).__name__, shop.url, shop.orders)
    with workers("worker.py") as start:
        for offset in ("+1h", "-1h", "+0"):
            start("broker", ledger, effects, *told, prefix=faketime(offset), env={"PYTHONWARNINGS": "default"})
        shop.publish(*[{"id": number} for number in range(20)] * 2)
        until(lambda: effects.exists() and len(set(effects.read_text().split())) == 20 and shop.pending() == 0)
    assert Counter(effects.read_text().split()).most_common(1)[0][1] == 1


@pytest.mark.parametrize("kind", [Postgres, Mariadb])
def test_a_server_that_starts_again_under_64_tasks_loses_and_doubles_nothing(kind, request):
    server = kind()
    request.addfinalizer(server.stop)
    once, effects = Once(server.url, lease=5.0), Effects()
    keys = [f"{task} {number}" for task in range(64) for number in range(8)]
    again = threading.Event()

    async def charge(key):
        await asyncio.sleep(0)
        return effects.handle(key)

    async def caller(task):
        for number in range(8):
            key = f"{task} {number}"
            while key not in effects.done:
                try:
                    assert await once.using(name="charge").run_async(key, charge, key) == key
                    effects.done.add(key)
                except OncewardError:
                    effects.doubts[key] += 1
                    await asyncio.sleep(0.1)
            if len(effects.done) > 100 and not again.is_set():
                again.set()
                await asyncio.to_thread(_killed_and_started, server)

    async def main():
        async with asyncio.timeout(300):
            await asyncio.gather(*map(caller, range(64)))

    asyncio.run(main())
    once.close()
    effects.check(keys)
    assert again.is_set()


def _killed_and_started(server):
    server.crash()
    server.start()


@pytest.fixture
def small_disk(monkeypatch):
    """A disk on which servers put what they have, and a function that fills it up or frees it."""
    folder = Path(tempfile.mkdtemp(prefix="onceward-disk-"))  # not in that of the test, which only root may read
    folder.chmod(0o755)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=260m,mode=1777", "tmpfs", str(folder)], check=False)
    if done.returncode:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("a file system can only be mounted by root")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    rest = folder / "rest"

    def fill(full):
        if not full:
            rest.unlink()
            return
        with rest.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    yield fill
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


@pytest.mark.sampled("Postgres")
@pytest.mark.filterwarnings("ignore::onceward.ResultWarning")
@pytest.mark.parametrize("kind", [Postgres, Mariadb])
def test_a_disk_that_is_full_under_the_server_loses_and_doubles_nothing(kind, small_disk, request):
    server = kind()
    request.addfinalizer(server.stop)
    once, effects = Once(server.url, lease=3.0), Effects()
    keys, begun, refused, stop = itertools.count(), set(), threading.Event(), threading.Event()

    def large(key):
        return [effects.handle(key), "x" * 50_000]

    def caller():
        while not stop.is_set():
            key = next(keys)
            begun.add(key)
            while key not in effects.done:
                try:
                    assert once.run(key, large, key) == [key, "x" * 50_000]
                    effects.done.add(key)
                except ResultUnavailable:  # there was room for the record, and not for its result
                    effects.done.add(key)
                except OncewardError:
                    effects.doubts[key] += 1
                    refused.set()
                    time.sleep(0.2)

    callers = [threading.Thread(target=caller, daemon=True) for _ in range(8)]
    for one in callers:
        one.start()
    until(lambda: len(effects.done) > 50)
    small_disk(True)
    until(refused.is_set)
    small_disk(False)
    if not server.answers():  # PostgreSQL ends when it cannot write its log
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            server.crash()
        server.start()
    done = len(effects.done)
    until(lambda: len(effects.done) > done + 50)
    stop.set()
    for one in callers:
        one.join(120)
    effects.check(begun)
    assert {record.status for record, _ in once.ledger.records()} == {"COMPLETED"}
    once.close()


MODES = (
    "ANSI_QUOTES,HIGH_NOT_PRECEDENCE,IGNORE_SPACE,PIPES_AS_CONCAT,REAL_AS_FLOAT",
    "NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH",
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,ONLY_FULL_GROUP_BY,TRADITIONAL",
    "ORACLE",
    "ANSI,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION",
    "",
)


def test_a_ledger_works_whatever_sql_mode_its_server_has(request):
    server = Mariadb()
    request.addfinalizer(server.stop)
    value = ["it's", 'a "quoted" \\ thing\n', "é\0😀", -1, json.dumps({"a": None})]
    for number, mode in enumerate(MODES):
        server.sql(f"SET GLOBAL sql_mode = '{mode}'")
        once = Once(server.url, lease=30)
        key = f"k'\\\"{number}  "
        for _ in range(2):
            assert once.using(name="t").run(key, lambda: value) == value
        claim = once.acquire("parked", name=str(number))
        claim.park("it's \\ why")
        assert once.ledger.unpark(f"{number}:parked").status == "RELEASED"
        assert once.batch(lambda n: n, key=lambda n: n, name=f"b{number}").run(range(9)) is not None
        assert sum(once.ledger.stats().values()) > 0
        once.close()


ABANDONED = 8.0


@pytest.fixture(params=list(PAIRS.values()), ids=list(PAIRS))
def pair(request):
    return request.param


@pytest.fixture
def primary(pair):
    made = pair.primary()
    made.sql("CREATE TABLE effects (name text)", database="test")
    yield made
    made.stop()


@pytest.mark.nightly
@pytest.mark.usefixtures("faketime")
@pytest.mark.sampled("mariadb-behind")  # histories promote a standby of PostgreSQL
@pytest.mark.parametrize("off", [5.0, -5.0], ids=["ahead", "behind"])  # seconds that the standby's clock is off
def test_failover_to_a_synchronous_standby_loses_and_doubles_nothing(pair, primary, off, tmp_path, request):
    standby, gate, log = pair.replica(primary, wrong_clock(f"{off:+.0f}s")), pair.wire(primary.port), tmp_path / "log"
    request.addfinalizer(standby.stop)
    request.addfinalizer(gate.close)
    asked = time.time()
    ((shown,),) = standby.sql(pair.now)
    assert asked - 0.5 < float(shown) - off < time.time() + 0.5
    url = pair.url(primary, standby, gate)
    abandoned = Once(url, lease=ABANDONED, heartbeat=0)
    claimed = time.monotonic()
    fence = abandoned.acquire("abandoned").fence
    log.touch()
    with workers("worker.py") as start:
        processes = [start("failover", url, log, COUNT, LEASE) for _ in range(4)]
        wait_for(log, "effect", COUNT // 3)
        gate.server = None
        primary.crash()
        standby.promote()
        gate.server = standby.port
        end(processes)
    effects = noted(log, "effect")
    assert set(Counter(key for key, _ in effects).values()) == {1}
    left = records(standby.url)
    made = dict(standby.sql("SELECT name, count(*) FROM effects GROUP BY name", database="test"))
    assert made.keys() == {key for key, held in left.items() if key.startswith("tx") and held.status == COMPLETED}
    assert set(made.values()) == {1}
    assert made.keys() >= {key for key, _ in noted(log, "committed")}
    assert len(made) > 0.8 * COUNT / 4
    for key, value in noted(log, "told"):
        assert (left[key].status, left[key].result) == (COMPLETED, f'"{value}"')
        assert (key, value) in effects
    # A reply that was lost with the primary can have made a claim, of which nobody knows.
    unknown = {key for key in left.keys() - dict(effects).keys() if not key.startswith("tx")}
    assert {left[key].status for key in unknown} <= {IN_PROGRESS}
    assert len(dict(effects)) > 0.9 * COUNT
    heir = None
    while heir is None:
        with contextlib.suppress(Busy):
            heir = abandoned.acquire("abandoned")
            taken = time.monotonic()
        time.sleep(0.05)
    assert heir.fence > fence
    assert taken - claimed > ABANDONED - off - 0.5, "it lasts that much shorter or longer, and no less"


def test_a_ledger_that_dies_in_the_middle_is_waited_for():
    server = Postgres()
    try:
        with serving(f"{server.url}") as service:
            api = service.api
            claim = api.claimed("k", lease=600)
            server.crash()
            away = api("extend", **claim)
            assert (away.status, away.problem) == (503, "unready")
            assert away.headers["retry-after"] == "1"
            refused = api("complete", **claim, result=[7])
            assert (refused.status, refused.problem) == (503, "unready")
            assert api.send("GET", "/healthz").status == 503
            server.start()
            until(lambda: api("complete", **claim, result=[7]).status == 200)
            assert api("claim", key="k", id=new_id()).body["result"] == [7]
            assert until(lambda: api.send("GET", "/healthz").status == 200)
    finally:
        server.stop()

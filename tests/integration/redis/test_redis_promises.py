"""What a Redis ledger promises when its server forgets, has no memory left, restarts, or is not what it should be."""

import asyncio
import functools
import re
import threading

import pytest
from redis import ResponseError

from fixtures import closing_fixture
from onceward import LeaseLost, ResultNotRecorded, StoreError
from onceward import Once as _Once
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, IN_PROGRESS
from onceward.stores import open_store
from onceward.stores.capabilities import EXISTS, INSPECT, MIGRATE, PROVISION
from onceward.stores.redis.requests import Confirmation
from onceward.testing.bench import claim_of
from servers.redis import Redis
from tables import each

Once = functools.partial(_Once, name="n")
# A server of the test's own, with the settings that it asks for.
server = closing_fixture(lambda request: Redis(**getattr(request, "param", {})))


def test_scripts_are_loaded_again_after_they_are_flushed(redis, redis_url):
    once = Once(redis_url)
    assert once.run("a", lambda: 1) == 1
    redis.ask("SCRIPT", "FLUSH")
    assert once.run("b", lambda: 2) == 2
    redis.ask("SCRIPT", "FLUSH")
    replies = drive(once.store.insert_many([claim_of(key) for key in "xyx"]), once.store)
    assert [reply.won for reply in replies] == [True, True, False]


@pytest.mark.parametrize("how", ["FLUSHALL", "restart"])
def test_a_claim_whose_record_is_forgotten_is_lost_and_the_next_has_a_larger_fence(server, how):
    once = Once(server.url, heartbeat=0)
    with pytest.raises(LeaseLost):
        with once.claim("k") as claim:
            if how == "restart":  # without a file
                server.kill()
                server.start()
            else:
                server.ask("FLUSHALL")
            claim.complete("never")
    assert not list(once.ledger.records())
    assert once.acquire("k").fence > claim.fence


def test_a_result_that_finds_no_memory_is_not_recorded_and_that_is_said(server):
    once = Once(server.url, lease=4, heartbeat=0)
    runs = []

    def handle():
        runs.append(1)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        return "made"

    with pytest.raises(ResultNotRecorded, match="no memory left"):
        once.run("k", handle)
    with pytest.raises(StoreError, match="no memory left"):
        once.run("other", handle)
    assert len(runs) == 1, "no handler runs without a claim"
    server.ask("CONFIG", "SET", "maxmemory", "0")
    record, _ = once.ledger.show("n:k")
    assert (record.status, record.result) == (IN_PROGRESS, None)


@pytest.mark.parametrize("server", [{"maxmemory": "50mb", "maxmemory_policy": "allkeys-lru"}], indirect=True)
def test_a_server_that_evicts_is_refused(server):
    with pytest.raises(StoreError, match=r"evicts records.*noeviction"):
        Once(server.url).run("k", lambda: 1)
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert Once(server.url).run("k", lambda: 2) == 2


def test_a_ledger_of_a_later_version_is_refused(redis, redis_url):
    store = open_store(redis_url)
    assert not EXISTS.require(store)()
    (part,) = drive(PROVISION.require(store)(frozenset()), store)
    assert part.made
    assert EXISTS.require(store)()
    (part,) = drive(MIGRATE.require(store)(), store)
    assert not part.made
    redis.ask("HSET", store.names.meta, "version", "2")
    with pytest.raises(StoreError, match=r"version 2.*upgrade onceward"):
        Once(redis_url).run("k", lambda: 1)


def test_completed_records_expire_by_themselves_and_others_do_not(redis, redis_url):
    once = Once(redis_url, retention=30, lease=5)
    once.run("done", lambda: 1)
    once.acquire("held")
    once.acquire("given").release()
    ttl = {}
    for key in ("n:done", "n:held", "n:given"):
        record = once.store.names.shard_of(key.encode()).keys_of(key.encode())[0]
        ttl[key] = int(redis.ask("PTTL", record))
    assert 25_000 < ttl["n:done"] <= 30_001
    assert ttl["n:held"] == ttl["n:given"] == -1


def test_an_expired_record_leaves_no_trace_after_a_purge(moved_redis):
    once = Once(moved_redis.fresh(), retention=10, lease=10)
    for number in range(40):
        once.run(number, lambda: 1)
        once.acquire(f"given {number}").release()
    moved_redis.move(60.0)
    assert not list(once.ledger.records(status="COMPLETED"))
    assert once.ledger.purge() == 40
    assert not list(once.ledger.records())
    left = [key for key in moved_redis.all_keys() if not key.endswith((":fence", ":ledger"))]
    assert left == []


@pytest.mark.parametrize(
    ("field", "value"), [("fence", "x"), ("result", b"\xff" * 40), ("error", b"a" * 70_000 + b"\xff")]
)
def test_a_record_that_cannot_be_read_is_shown_and_can_be_cleared(redis, redis_url, field, value):
    once = Once(redis_url)
    once.run("k", lambda: 1)
    ((record, _),) = once.ledger.records()
    raw = record.key.encode()
    redis.ask("HSET", once.store.names.shard_of(raw).keys_of(raw)[0], field, value)
    with pytest.raises(StoreError, match="cannot be read"):
        once.run("k", lambda: 2)
    (page,) = once.ledger.pages()
    assert [one.key for one in page.damaged] == [record.key]
    once.ledger.clear(record.key)
    assert once.run("k", lambda: 3) == 3


@pytest.mark.parametrize("server", [{"appendonly": "no"}, {"appendonly": "yes"}], indirect=True)
def test_writes_wait_for_the_disk_or_no_handler_runs(server):
    """Redis knows WAITAOF from 7.2, and refuses it without the file."""
    once = Once(f"{server.url}?disk=yes&timeout=60")
    if "unknown command" in server.ask("WAITAOF", 0, 0, 1) or server.ask("CONFIG", "GET", "appendonly").count("no"):
        with pytest.raises(StoreError, match=r"disk=yes needs Redis 7\.2"):
            once.run("k", pytest.fail)
        assert not list(Once(server.url).ledger.records())
        return
    assert [once.run("k", lambda: 1) for _ in range(3)] == [1, 1, 1]
    with server.client() as client:
        assert client.info("commandstats")["cmdstat_waitaof"]["calls"] >= 4
    assert levels(once.store)["appendfsync"] == "ok"


@each(
    ("asked", "answer", "says"),
    [
        (Confirmation(1, False, 0.5), 1, None),
        (Confirmation(2, False, 0.5), 1, r"1 replica\(s\) confirmed"),
        (Confirmation(0, True, 0.5), [1, 0], None),
        (Confirmation(0, True, 0.5), [0, 0], "did not confirm in time"),
        (Confirmation(1, True, 0.5), [1, 1], None),
        (Confirmation(1, True, 0.5), [1, 0], r"0 replica\(s\) confirmed"),
        (Confirmation(1, True, 0.5), ResponseError("unknown command"), "unknown command"),
    ],
)
def test_what_a_confirmation_misses(asked, answer, says):
    missing = asked.missing(answer)
    assert missing is None if says is None else re.search(says, str(missing))


def levels(store):
    return {one.check: one.level for one in INSPECT.require(store)().findings()}


@pytest.mark.parametrize("server", [{"appendonly": "yes", "appendfsync": "everysec"}], indirect=True)
def test_doctor_tells_what_a_server_may_lose(server):
    store = open_store(server.url)
    assert levels(store) == {"eviction": "ok", "appendfsync": "warning"}
    server.ask("CONFIG", "SET", "appendfsync", "always")
    assert levels(store)["appendfsync"] == "ok"
    server.ask("CONFIG", "SET", "appendonly", "no")
    server.ask("CONFIG", "SET", "maxmemory", "100mb")
    server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    assert levels(open_store(server.url)) == {"eviction": "error", "appendonly": "error"}


RIGHTS = (
    "~onceward:* resetchannels -@all +evalsha +eval +hget +hgetall +hset +hsetnx +hdel +get +set +incr +del +zadd +zrem +zcard +zcount "
    "+zrangebyscore +zrangebylex +pexpire +pexpireat +persist +time +rpush +blpop +info +wait"
)


@pytest.fixture
def worker_url(server):
    """The URL of a user with the documented rights, and no others."""
    server.ask("ACL", "SETUSER", "worker", "on", ">secret", *RIGHTS.split())
    return server.url.replace("redis://", "redis://worker:secret@")


def test_the_documented_rights_are_enough(worker_url, caplog):
    once = Once(worker_url, lease=5)
    assert once.run("k", lambda: 1) == once.run("k", lambda: 2) == 1
    with once.claim("c") as claim:
        claim.extend()
    once.acquire("r").release("no")
    once.acquire("r").park("no")
    assert len(list(once.ledger.records())) == 3
    assert once.ledger.survey().counts[COMPLETED] == 2
    once.ledger.purge()
    claim = once.acquire("w")
    waiter = threading.Thread(target=Once(worker_url, on_busy=30.0).run, args=("w", lambda: 1))
    waiter.start()
    claim.complete(1)
    waiter.join(60)
    assert not waiter.is_alive()
    assert "cannot be read" not in caplog.text
    assert levels(once.store)["appendonly"] == "error"
    with pytest.raises(StoreError, match=r"[^.]\. docs/reference/redis\.md lists the rights"):
        Once(worker_url.replace("secret", "wrong"), lease=5).run("k", int)


def test_a_missing_right_is_told_or_warned_of(server, worker_url, caplog):
    server.ask("ACL", "SETUSER", "worker", "-info")
    assert Once(worker_url).run("k", lambda: 1) == 1
    assert "whether the server evicts records cannot be read" in caplog.text
    assert levels(open_store(worker_url))["eviction"] == "unknown"
    server.ask("ACL", "SETUSER", "worker", "-evalsha")
    with pytest.raises(StoreError, match=r"evalsha.*docs/reference/redis.md"):
        Once(worker_url).run("k", lambda: 1)


def test_a_password_is_never_shown(worker_url):
    for name in ("password", "sentinel_password", "ssl_password"):
        url = f"rediss://a:1/0?{name}=secret" + ("&sentinel=x" if name.startswith("sentinel") else "")
        assert "secret" not in open_store(url).url
    with pytest.raises(StoreError) as caught:
        Once(worker_url.replace("secret", "wrong")).run("k", lambda: 1)
    assert "wrong" not in str(caught.value).replace("invalid username-password pair", "")


async def test_the_first_tasks_of_a_ledger_share_one_look_at_the_server(server):
    once = Once(server.url)
    await asyncio.gather(*(once.run_async(f"k{number}", asyncio.sleep, 0) for number in range(40)))
    once.close()
    assert "cmdstat_hsetnx': {'calls': 1," in server.ask("INFO", "commandstats")  # which made the ledger

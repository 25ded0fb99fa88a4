"""Redis servers that are killed under four workers or more, and replicas that take their place: what was lost is counted."""

import collections
import contextlib
import time

import pytest
from redis.crc import key_slot

from faults.processes import lines, workers
from fixtures import closing_fixture
from onceward import Once
from onceward.core.record import COMPLETED
from onceward.stores.redis.names import RedisNames
from servers.redis import Redis, RedisCluster, Replica, clock_of, slots_of
from servers.wires import Gate
from waiting import until

LEASE = 60.0  # seconds: longer than any failover here
COUNT = 120
PACE = 0.2  # seconds that a handler takes at most, where a failover must come before all is done


@pytest.fixture
def start():
    with workers("worker.py") as begin:
        yield begin


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def serve():
    """Give a function that starts a server, which is stopped at the end."""
    with contextlib.ExitStack() as stack:

        def make(kind, *arguments, **options):
            made = kind(*arguments, **options)
            stack.callback(made.stop)
            return made

        yield make


gate = closing_fixture(lambda: Gate(0))


def noted(log, what):
    """Return the words after ``what`` of the log's whole lines: key, value, and on Redis the fence."""
    text = log.read_text().rpartition("\n")[0]
    return [tuple(rest) for kind, *rest in map(str.split, text.splitlines()) if kind == what]


def wait_for(log, what, number):
    until(lambda: len(noted(log, what)) >= number)


def records(url):
    return {record.key.partition(":")[2]: record for record, _ in Once(url).ledger.records(prefix="k:")}


def end(processes):
    for process in processes:
        assert lines(process) == ["done"]


def check_fences(log):
    """Each run of a key has a larger fence than the run before it."""
    of_key = collections.defaultdict(list)
    for key, _, fence in noted(log, "effect"):
        of_key[key].append(int(fence))
    assert all(fences == sorted(set(fences)) for fences in of_key.values())


def effects_before(killed, log):
    """Return the keys that ran by a claim of before a time, in microseconds. It is in the fence; a busy worker notes its effect late."""
    return {key for key, _, fence in noted(log, "effect") if int(fence) < killed}


def check_told(log, left):
    """What callers were told is what is recorded, and was made."""
    made = {(key, value) for key, value, _ in noted(log, "effect")}
    for key, value, _ in noted(log, "told"):
        assert (left[key].status, left[key].result) == (COMPLETED, f'"{value}"')
        assert (key, value) in made


def check_doubled(log, kept, completed, promised, left):
    """Only what was promised and not heard of ran again, once, with a larger fence; what had been heard of is final."""
    again = collections.Counter(key for key, *_ in noted(log, "effect"))
    doubled = {key for key, runs in again.items() if runs > 1}
    # A claim that was given up in the middle of the failover holds its key for a lease, and here nobody comes back later.
    held = {key for key, record in left.items() if record.status != COMPLETED}
    assert promised - kept - held <= doubled <= promised
    assert all(again[key] <= 2 for key in doubled)
    assert all(left[key].status == COMPLETED for key in completed)
    check_fences(log)


@pytest.mark.nightly
def test_failover_doubles_only_what_the_replica_had_not_heard_of(start, serve, log, gate):
    primary = serve(Redis)
    replica = serve(Replica, primary)
    gate.turn(primary.port)
    started = [start("failover", f"redis://127.0.0.1:{gate.port}/0", log, COUNT, LEASE, PACE) for _ in range(4)]
    wait_for(log, "told", COUNT // 4)
    replica.promote()  # from here on, what the old primary answers is lost
    kept = records(replica.url)
    completed = {key for key, record in kept.items() if record.status == COMPLETED}
    until(lambda: len({key for key, *_ in noted(log, "told")} - completed) >= 20)  # less would prove nothing
    gate.turn(None)
    primary.kill()
    killed = time.time() * 1e6
    gate.turn(replica.port)
    end(started)
    left = records(replica.url)
    check_doubled(log, kept.keys(), completed, effects_before(killed, log) - completed, left)
    assert all(left[key] == kept[key] for key in completed)


@pytest.mark.nightly
def test_killed_workers_and_a_killed_server_that_writes_its_file_lose_nothing(start, serve, log):
    server = serve(Redis, appendonly="yes", appendfsync="always")
    started = [start("failover", server.url, log, COUNT, LEASE) for _ in range(4)]
    wait_for(log, "told", COUNT // 4)
    for process in started[:2]:
        process.kill()
    server.kill()
    told = noted(log, "told")
    server.start()
    end(started[2:])
    left = records(server.url)
    assert {key for key, _, _ in told} <= {key for key, record in left.items() if record.status == COMPLETED}
    assert set(collections.Counter(key for key, _, _ in noted(log, "effect")).values()) == {1}
    check_told(log, left)


def test_failover_to_a_replica_that_confirmed_loses_no_answered_write(start, serve, log, gate):
    primary = serve(Redis)
    replicas = [serve(Replica, primary) for _ in range(2)]
    gate.turn(primary.port)
    started = [start("failover", f"redis://127.0.0.1:{gate.port}/0?wait=1", log, COUNT, LEASE) for _ in range(4)]
    wait_for(log, "told", COUNT // 4)
    gate.turn(None)
    primary.kill()
    told = noted(log, "told")
    heir, other = sorted(replicas, key=offset, reverse=True)  # as Sentinel chooses
    heir.promote()
    kept = records(heir.url)
    assert {key for key, *_ in told} <= {key for key, record in kept.items() if record.status == COMPLETED}
    other.ask("REPLICAOF", "127.0.0.1", heir.port)
    gate.turn(heir.port)
    end(started)
    assert set(collections.Counter(key for key, *_ in noted(log, "effect")).values()) == {1}
    check_told(log, records(heir.url))


@pytest.mark.nightly
def test_a_node_whose_replica_confirmed_fails_over_and_nothing_is_lost(start, serve, log):
    cluster = serve(RedisCluster, 1)
    (primary, (replica,)), *_ = cluster.pairs
    mine = slots_of(primary)
    started = [start("failover", f"{cluster.url}&wait=1", log, COUNT, LEASE) for _ in range(4)]
    wait_for(log, "told", COUNT // 4)
    primary.kill()
    told = {key for key, *_ in noted(log, "told") if slot_of(key) in mine}
    replica.until(lambda: "master" in replica.ask("ROLE"))
    assert told
    assert told <= {key for key, status in held_by(replica).items() if status == COMPLETED}
    primary.start()  # it comes back as the replica that the heir needs
    end(started)
    assert set(collections.Counter(key for key, *_ in noted(log, "effect")).values()) == {1}


NAMES_OF_LEDGER = RedisNames("onceward")


def slot_of(key):
    """Return the slot of a worker's key."""
    return key_slot(NAMES_OF_LEDGER.shard_of(f"k:{key}".encode()).base)


def held_by(node):
    """Return the status of each record that a node of a Cluster has, as a replica too."""
    with node.client() as client:
        client.readonly()
        found = [client.hgetall(name) for name in client.scan_iter("onceward:*:record:*")]
    return {one["key"].partition(":")[2]: one["status"] for one in found if one}


def offset(server):
    with server.client() as client:
        return client.info("replication")["slave_repl_offset"]


def test_a_fence_grows_after_a_failover_to_a_clock_an_hour_late(serve, faketime):
    primary = serve(Redis)
    replica = serve(Replica, primary, clock_of("-1h"))
    before = Once(primary.url, name="k", retention=5, lease=5)
    held = before.acquire("held").fence
    gone = before.acquire("gone")
    gone.complete(1)
    until(lambda: "gone" not in records(primary.url))
    with primary.client() as client:
        until(lambda: offset(replica) >= client.info("replication")["master_repl_offset"])
    primary.kill()
    replica.promote()
    after = Once(replica.url, name="k", lease=10)
    assert after.acquire("gone").fence > gone.fence
    after.ledger.clear("k:held", live=True)
    assert after.acquire("held").fence > held

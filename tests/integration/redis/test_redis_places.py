"""A Redis ledger on a Cluster, behind Sentinels, over TLS, with replicas that confirm."""

import asyncio
import time

import pytest
from redis.crc import key_slot

from fixtures import closing_fixture
from onceward import Once, StoreError
from onceward.core.drivers import drive, drive_async
from onceward.core.record import COMPLETED
from onceward.stores import open_store
from onceward.stores.capabilities import INSPECT
from onceward.stores.redis.requests import Asking
from onceward.testing.bench import claim_of
from onceward.testing.conformance import CHECKS, Bench
from servers.needs import certificate
from servers.redis import Redis, RedisCluster, RedisSentinel, Replica, slots_of
from servers.wires import Gate

pytestmark = pytest.mark.sampled(mode=1)

NAMES = {
    "insert_many_in_order",
    "swap_many_in_order",
    "one_insert_wins",
    "writes_are_read",
    "a_write_needs_the_version_held",
    "fields_round_trip",
}
CLUSTERED = [one for one in CHECKS if one.name in NAMES | {"list_finds_all", "select_a_chain", "due_in_pages"}]
cluster = closing_fixture(RedisCluster, scope="module")
primary = closing_fixture(Redis)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("check", CLUSTERED, ids=str)
def test_a_ledger_in_a_cluster_conforms(check, mode, cluster):
    for node in cluster.nodes:
        node.ask("FLUSHALL")
    make = lambda *_: open_store(cluster.url)
    check.run(Bench(make, make, mode=mode, advance=time.sleep))


def test_a_cluster_without_its_option_is_told(cluster):
    with pytest.raises(StoreError, match="cluster=yes"):
        for number in range(20):
            Once(cluster.url.partition("?")[0], name="n").run(number, lambda: 1)


def test_doctor_tells_of_one_node_that_evicts(cluster):
    levels = lambda: {one.check: one.level for one in INSPECT.require(open_store(cluster.url))().findings()}
    node = cluster.nodes[-1]
    assert levels()["eviction"] == "ok"
    node.ask("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "volatile-lru")
    try:
        assert levels()["eviction"] == "error"
    finally:
        node.ask("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")


# A Cluster in which each primary has a replica.
doubled = closing_fixture(lambda: RedisCluster(replicas=1), scope="module")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_replica_of_a_cluster_that_does_not_confirm_fails_the_writes_of_its_slots_only(doubled, mode):
    store = open_store(f"{doubled.url}&wait=1&timeout=6")
    claims = [claim_of(f"{mode}-{number}") for number in range(30)]
    (primary, (replica,)), *_ = doubled.pairs
    mine = slots_of(primary)
    with asyncio.Runner() as runner:

        def insert_all():
            steps = store.insert_many(claims)
            return runner.run(drive_async(steps, store)) if mode == "async" else drive(steps, store)

        drive(store.load("?"), store)
        replica.pause()
        try:
            first = insert_all()
        finally:
            replica.go_on()
        is_there = [key_slot(store.names.shard_of(claim.key.encode()).base) in mine for claim in claims]
        assert [isinstance(reply, StoreError) and reply.transient for reply in first] == is_there
        assert {*is_there} == {True, False}
        assert all("0 replica(s) confirmed" in str(reply) for reply in first if isinstance(reply, StoreError))
        # Its own writes are met.
        primary.until(lambda: all(not isinstance(reply, StoreError) for reply in insert_all()))
        store.close()


def test_a_write_that_no_replica_confirms_is_not_taken_for_made(primary):
    once = Once(f"{primary.url}?wait=1&timeout=1", name="n", lease=5)
    patient = Once(f"{primary.url}?wait=1&timeout=60", name="n", lease=60)
    with pytest.raises(StoreError, match=r"0 replica\(s\) confirmed"):
        once.run("k", lambda: 1)
    replica = Replica(primary)
    try:
        assert patient.run("k2", lambda: 1) == 1
        replica.pause()
        with pytest.raises(StoreError, match="confirmed"):
            once.run("k3", lambda: 1)
        with pytest.raises(StoreError, match="confirmed"):  # what an earlier request wrote is not confirmed, either
            once.store.exchange(next(once.store.load("n:k3")))
        replica.go_on()
        assert patient.run("k4", lambda: 1) == 1
    finally:
        replica.stop()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_batch_leaves_the_connection_to_a_server_that_is_a_replica_now(primary, mode):
    store = open_store(primary.url)
    listed = lambda: primary.client(client_name="test").client_list()
    connected = lambda: {one["id"] for one in listed() if one["name"] != "test"}
    with asyncio.Runner() as runner:

        def refused(keys):
            steps = store.insert_many([claim_of(key) for key in keys])
            answers = runner.run(drive_async(steps, store)) if mode == "async" else drive(steps, store)
            return all(isinstance(one, StoreError) and one.transient for one in answers)

        assert not refused("ab")
        before = connected()
        primary.ask("REPLICAOF", "127.0.0.1", "1")
        assert refused("cd")
        assert before - connected()
        store.close()


def test_a_refusal_of_one_key_leaves_the_connections_open(primary):
    store = open_store(primary.url)
    drive(store.insert(claim_of("a")), store)
    primary.ask("SET", store.names.shard_of(b"bad").of_key(b"bad")[0], "no hash")
    seen = store.exchange(Asking(["CLIENT", "ID"]))
    with pytest.raises(StoreError, match="WRONGTYPE"):
        drive(store.insert(claim_of("bad")), store)
    assert store.exchange(Asking(["CLIENT", "ID"])) == seen
    store.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_outcome_follows_the_address_to_the_new_primary(mode):
    """The old one goes on, and takes no write without a replica: a worker whose connections stay open must leave it."""
    old = Redis(min_replicas_to_write=1)
    replica = Replica(old)
    old.until(lambda: old.client().info("replication")["connected_slaves"] == 1)
    gate = Gate(old.port)
    once = Once(f"redis://127.0.0.1:{gate.port}/0?timeout=1", name="n", lease=30)

    def fail_over():
        replica.promote()
        gate.server = replica.port  # for new connections
        old.until(lambda: old.client().info("replication")["connected_slaves"] == 0)
        return 1

    async def failing_over():
        return fail_over()

    with asyncio.Runner() as runner:
        assert (runner.run(once.run_async("k", failing_over)) if mode == "async" else once.run("k", fail_over)) == 1
    assert once.run("k", lambda: 2) == 1
    for one in (once, gate):
        one.close()
    for one in (replica, old):
        one.stop()


def test_a_cluster_whose_nodes_have_all_new_addresses_is_found_by_its_url():
    before, after = RedisCluster(), RedisCluster()
    gate = Gate(before.nodes[0].port)
    once = Once(f"redis://127.0.0.1:{gate.port}/0?cluster=yes&timeout=1", name="n", lease=30)
    assert once.run("k", lambda: 1) == 1
    before.stop()
    gate.turn(after.nodes[0].port)
    after.nodes[0].until(lambda: outcome_of(once) == 2)
    once.close()
    gate.close()
    after.stop()


def outcome_of(once):
    try:
        return once.run("k", lambda: 2)
    except StoreError:
        return None


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_sentinels_lead_to_the_new_primary(primary, mode):
    replica = Replica(primary)
    sentinel = RedisSentinel(primary)
    url = f"redis://127.0.0.1:{sentinel.port}/0?sentinel=ledger&timeout=10"
    patient, store = open_store(f"{url}&wait=1"), open_store(url)  # the new primary has no replica that could confirm
    try:
        with asyncio.Runner() as runner:
            before = drive(patient.insert(claim_of("k")), patient).record
            primary.kill()

            def met():
                steps = store.insert(claim_of("k", "another"))
                try:
                    return (runner.run(drive_async(steps, store)) if mode == "async" else drive(steps, store))[:2]
                except StoreError as error:
                    if not error.transient:
                        raise

            sentinel.until(lambda: met() == (False, before))
            store.close()
            patient.close()
    finally:
        sentinel.stop()
        replica.stop()


@pytest.fixture
def secured(tmp_path):
    """A server that takes TLS only, and the path of the certificate that signs its own."""
    chain, key = certificate(tmp_path)
    made = Redis(tls_cert_file=chain, tls_key_file=key, tls_auth_clients="no", tls=True)
    yield made, chain
    made.stop()


def test_tls_is_checked(secured):
    server, path = secured
    url = server.url.replace("redis://", "rediss://")
    assert Once(f"{url}?ssl_ca_certs={path}", name="n").run("k", lambda: 1) == 1
    store = open_store(f"{url.replace('rediss', 'valkeys')}?ssl_ca_certs={path}")
    assert asyncio.run(drive_async(store.load("n:k"), store)).record.status == COMPLETED
    store.close()
    with pytest.raises(StoreError, match="certificate"):
        Once(url, name="n").run("k", lambda: 1)


def test_wrong_options_are_refused():
    for wrong in ("timeout=0", "wait=-1", "cluster=yes&sentinel=x", "nonsense=1"):
        with pytest.raises(ValueError, match=wrong.partition("=")[0]):
            Once(f"redis://127.0.0.1:1/0?{wrong}").run("k", len, "")
    for wrong in ("shop", "0/shop", "-1"):
        with pytest.raises(ValueError, match="give the number of a database"):
            Once(f"redis://127.0.0.1:1/{wrong}")

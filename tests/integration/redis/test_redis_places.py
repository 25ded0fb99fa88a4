"""A Redis ledger on a Cluster, behind Sentinels, over TLS, with replicas that confirm, and on clients of the caller's own."""

import asyncio
import datetime as dt
import ipaddress
import time

import pytest
import redis as driver
import redis.asyncio as driver_async
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis.crc import key_slot

from onceward import Once, StoreError
from onceward.core.drivers import drive, drive_async
from onceward.core.record import COMPLETED
from onceward.core.selections import ByKey
from onceward.stores import open_store
from onceward.stores.capabilities import INSPECT
from onceward.stores.redis import open_ledger
from onceward.stores.redis.names import RedisNames
from onceward.testing.bench import claim_of
from onceward.testing.conformance import CHECKS, Bench
from servers.redis import Redis, RedisCluster, RedisSentinel, Replica, slots_of, until

pytestmark = pytest.mark.sampled(mode=1)

NAMES = {
    "insert_many_in_order",
    "insert_many_of_one_key",
    "swap_many_in_order",
    "large_batches",
    "one_insert_wins",
    "swap_writes_what_was_seen",
    "insert_knows_its_own_claim",
    "delete_is_conditioned",
    "fields_round_trip",
}
CLUSTERED = [one for one in CHECKS if one.name in NAMES | {"scan_finds_all", "trace_finds_a_chain", "due_in_pages"}]
GIVEN = [one for one in CHECKS if one.name in NAMES]


@pytest.fixture(scope="module")
def cluster():
    made = RedisCluster()
    yield made
    made.stop()


@pytest.fixture
def primary():
    made = Redis()
    yield made
    made.stop()


# --- a Cluster ------------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_shards_are_spread_evenly_and_a_key_stays_in_one_slot(cluster):
    names = RedisNames("onceward")
    ask = cluster.nodes[0].ask
    slots = [{int(ask("CLUSTER", "KEYSLOT", key)) for key in shard.keys_of(b"some{key}")} for shard in names.shards]
    assert all(len(one) == 1 for one in slots)
    assert sorted(slot // 256 for (slot,) in slots) == list(range(64))


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


def test_doctor_looks_at_a_cluster(cluster):
    found = {one.check: one.level for one in INSPECT.needed(open_store(cluster.url))().findings()}
    assert found["version"] == "ok"


@pytest.mark.parametrize("number", range(3))
def test_doctor_tells_of_one_node_that_evicts(cluster, number):
    node = cluster.nodes[number]
    node.ask("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "volatile-lru")
    try:
        found = {one.check: one.level for one in INSPECT.needed(open_store(cluster.url))().findings()}
    finally:
        node.ask("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    assert found["eviction"] == "error"


@pytest.fixture(scope="module")
def doubled():
    """A Cluster in which each primary has a replica."""
    made = RedisCluster(replicas=1)
    yield made
    made.stop()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("check", [one for one in GIVEN if one.name != "large_batches"], ids=str)
def test_a_ledger_in_a_cluster_whose_replicas_confirm_conforms(check, mode, doubled):
    for primary, _ in doubled.pairs:
        primary.ask("FLUSHALL")
    make = lambda *_: open_store(f"{doubled.url}&wait=1&timeout=60")
    check.run(Bench(make, make, mode=mode, advance=time.sleep))


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
        for claim, reply in zip(claims, first, strict=True):
            is_there = slot_of(store, claim.key) in mine
            if is_there:
                assert isinstance(reply, StoreError)
                assert reply.transient
                assert "0 replica(s) confirmed" in str(reply)
            else:
                assert reply.won
        assert {isinstance(reply, StoreError) for reply in first} == {True, False}
        until(
            lambda: all(not isinstance(reply, StoreError) for reply in insert_all()), primary
        )  # its own writes are met
        store.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_replicas_of_a_cluster_of_the_callers_own_client_confirm(doubled, mode):
    place = {"host": "127.0.0.1", "port": doubled.nodes[0].port}
    steps = lambda store: store.insert_many([claim_of(f"{mode}{number}") for number in range(9)])

    async def use():
        async with driver_async.RedisCluster(**place) as client:
            one, two = (open_ledger(client, wait=n, timeout=t, prefix="given") for n, t in ((1, 60), (2, 2)))
            made = await drive_async(steps(one), one)
            with pytest.raises(StoreError, match=r"1 replica\(s\) confirmed"):
                await drive_async(steps(two), two)
            return made

    if mode == "async":
        made = asyncio.run(use())
    else:
        with driver.RedisCluster(**place) as client:
            one, two = (open_ledger(client, wait=n, timeout=t, prefix="given") for n, t in ((1, 60), (2, 2)))
            made = drive(steps(one), one)
            with pytest.raises(StoreError, match=r"1 replica\(s\) confirmed"):
                drive(steps(two), two)
    assert [reply.won for reply in made] == [True] * 9


def slot_of(store, key):
    return key_slot(store.names.shard_of(key.encode()).base)


# --- replicas and Sentinels -----------------------------------------------------------------------------------------------


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
            once.store.exchange(_load(once.store, "n:k3"))
        replica.go_on()
        assert patient.run("k4", lambda: 1) == 1
    finally:
        replica.stop()


def _load(store, key):
    return next(store.load(key))


@pytest.mark.nightly
def test_a_replay_is_confirmed_by_a_write_since_redis_7_2_waits_for_nothing_else(primary):
    replica = Replica(primary)
    try:
        once = Once(f"{primary.url}?wait=1&timeout=60", name="n")
        once.run("k", lambda: 1)
        writes = lambda: primary.client().info("commandstats")["cmdstat_set"]["calls"]
        before = writes()
        assert once.run("k", pytest.fail) == 1
        assert writes() > before
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


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_sentinels_lead_to_the_new_primary(primary, mode):
    replica = Replica(primary)
    sentinel = RedisSentinel(primary)
    try:
        once = Once(f"redis://127.0.0.1:{sentinel.port}/0?sentinel=ledger&timeout=10&wait=1", name="n", lease=60)

        def insert(key):
            steps = once.store.insert(claim_of(key))
            return runner.run(drive_async(steps, once.store)) if mode == "async" else drive(steps, once.store)

        with asyncio.Runner() as runner:
            before = insert("k").record
            primary.kill()

            def taken():
                try:
                    return replica.ask("ROLE").startswith("['master'") and not insert("k").won
                except StoreError as error:
                    if not error.transient:
                        raise
                    # The new primary has no replica that could confirm, so the last step is without.
                    return "confirmed" in str(error)

            until(taken, sentinel)
            plain = Once(f"redis://127.0.0.1:{sentinel.port}/0?sentinel=ledger", name="n")

            def read():
                try:
                    return drive(plain.store.load("k"), plain.store).record == before
                except StoreError as error:
                    if not error.transient:
                        raise
                    return False

            until(read, sentinel)
            once.store.close()
            plain.store.close()
    finally:
        sentinel.stop()
        replica.stop()


# --- TLS ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def secured(tmp_path):
    """A server that takes TLS only, and the path of the certificate that signs its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + dt.timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.TraditionalOpenSSL
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    )
    made = Redis(
        tls_cert_file=tmp_path / "cert.pem", tls_key_file=tmp_path / "key.pem", tls_auth_clients="no", tls=True
    )
    yield made, tmp_path / "cert.pem"
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


# --- clients of the caller's own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}], ids=str)
def test_a_ledger_on_a_blocking_client(redis, redis_url, options):
    prefix = redis_url.partition("prefix=")[2]
    with driver.Redis(port=redis.port, **options) as client:
        for check in GIVEN:
            make = lambda *_, name=check.name: open_ledger(client, prefix=f"{prefix}-{name}")
            check.run(Bench(make, mode="async" if options else "sync", advance=time.sleep))
        assert client.ping(), "it stays open"


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}], ids=str)
def test_a_ledger_on_an_asynchronous_client(redis, redis_url, options):
    prefix = redis_url.partition("prefix=")[2]

    async def main():
        async with driver_async.Redis(port=redis.port, **options) as client:
            once = Once(open_ledger(client, prefix=prefix), name="n", lease=3.0)

            async def handle():
                await asyncio.sleep(4.0)  # the heartbeat renews on this loop
                return "made"

            assert await once.run_async("k", handle) == "made"
            assert await once.run_async("k", handle) == "made"
            page = await drive_async(once.store.select(ByKey(), None, 10), once.store)
            assert [record.status for record in page.records] == [COMPLETED]
            with pytest.raises(StoreError, match="is asynchronous"):
                once.run("other", len, "abc")
            assert await client.ping()

    asyncio.run(main())


def test_a_cancellation_is_not_swallowed_by_an_asynchronous_client(redis, redis_url):
    async def main():
        async with driver_async.Redis(port=redis.port) as client:
            once = Once(open_ledger(client, prefix=redis_url.partition("prefix=")[2]), name="n")
            await once.run_async("warm", asyncio.sleep, 0)
            for turns in range(6):
                task = asyncio.create_task(once.run_async(turns, asyncio.sleep, 0))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if task.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await task
            assert await once.run_async("after", asyncio.sleep, 0, "made") == "made"

    asyncio.run(main())


def test_an_interrupt_before_an_answer_is_read_leaves_it_to_nobody(redis, redis_url, monkeypatch):
    with driver.Redis(port=redis.port) as client:
        once = Once(open_ledger(client, prefix=redis_url.partition("prefix=")[2]), name="n")
        once.run("warm", int)
        send = driver.Connection.send_packed_command

        def struck(*given, **options):
            send(*given, **options)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(driver.Connection, "send_packed_command", struck)
        with pytest.raises(KeyboardInterrupt):
            once.run("k", pytest.fail)
        assert once.run("other", lambda: "made") == "made"
        assert once.run("k", lambda: "tried again") == "tried again"


def test_texts_are_utf8_whatever_the_encoding_of_the_client(redis, redis_url):
    prefix = redis_url.partition("prefix=")[2]
    with driver.Redis(port=redis.port, encoding="latin-1", decode_responses=True) as client:
        once = Once(open_ledger(client, prefix=prefix), name="n")
        assert once.run("é", lambda: "café") == "café"
        assert once.run("é", pytest.fail) == "café"
        outcomes = once.batch(str.upper, key=str, name="b").run(["é😀", "k"])
        assert [outcome.value for outcome in outcomes] == ["É😀", "K"]
    assert Once(redis_url, name="n").run("é", pytest.fail) == "café"


def test_what_is_no_client_is_refused(redis, redis_url):
    for wrong in (object(), driver.Redis(port=redis.port).pipeline(), driver_async.Redis(port=redis.port).pipeline()):
        with pytest.raises(TypeError, match="give a Redis or RedisCluster"):
            open_ledger(wrong)
    for wrong in ("timeout=0", "wait=-1", "eviction=no", "cluster=no", "cluster=yes&sentinel=x", "nonsense=1"):
        with pytest.raises(ValueError, match=wrong.partition("=")[0]):
            Once(f"redis://127.0.0.1:1/0?{wrong}").run("k", len, "")
    for wrong in ("shop", "0/shop", "-1"):
        with pytest.raises(ValueError, match="give the number of a database"):
            Once(f"redis://127.0.0.1:1/{wrong}")

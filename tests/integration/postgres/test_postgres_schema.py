"""Making, printing, migrating and inspecting a ledger in PostgreSQL, and the least rights that a worker needs."""

import itertools
import threading

import psycopg
import pytest

from onceward import StoreError
from onceward.core.comparisons import meets
from onceward.core.drivers import drive
from onceward.core.protocol import STATES
from onceward.core.record import Record
from onceward.core.selections import ByKey
from onceward.core.views import Criteria
from onceward.stores import open_store
from onceward.stores.capabilities import FOUND, INSPECT, MIGRATE, PROVISION, TEMPLATE
from onceward.stores.ledger import Ledger
from onceward.stores.postgres import schema as ledger_schema
from onceward.testing.bench import claim_of, next_of


@pytest.fixture
def store(schema):
    store = open_store(schema)
    yield store
    store.close()


@pytest.fixture
def sql(postgres):
    return lambda statement, *values: postgres.sql(statement, *values, database="test")


def findings(store):
    return {one.check: one for one in INSPECT.needed(store)().findings()}


def test_init_makes_the_tables_once(store):
    assert not FOUND.needed(store)()
    make = PROVISION.needed(store)
    assert [part.made for part in drive(make(frozenset()), store)] == [True, True]
    assert FOUND.needed(store)()
    assert [part.made for part in drive(make(frozenset()), store)] == [False, False]


def test_first_uses_at_once_make_one_ledger(schema):
    stores = [open_store(schema) for _ in range(6)]
    holders, start = [], threading.Barrier(6)

    def use(store, owner):
        start.wait()
        reply = drive(store.insert(claim_of("key", owner)), store)
        holders.append((owner, reply.record.owner))  # who won is known by the owner: a request can be sent again
        store.close()

    threads = [threading.Thread(target=use, args=[store, f"o{n}"]) for n, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(holders) == 6
    assert len({holder for _, holder in holders}) == 1
    assert sum(owner == holder for owner, holder in holders) == 1


def test_the_printed_sql_makes_a_ledger(store, postgres):
    text = TEMPLATE.needed(store)("sql", frozenset())
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(text)
    assert FOUND.needed(store)()
    assert drive(store.insert(claim_of("key", "a")), store).won


def test_a_worker_needs_no_more_rights_than_printed(store, postgres, sql):
    drive(PROVISION.needed(store)(frozenset()), store)
    role = f"worker_{store.names.schema}"
    text = TEMPLATE.needed(store)("sql", frozenset())
    sql(f"CREATE ROLE {role} LOGIN")
    for line in text.splitlines():
        if line.startswith("-- GRANT"):
            sql(line.removeprefix("-- ").replace("TO worker", f"TO {role}"))
    worker = open_store(store.url.replace("postgres@", f"{role}@"))
    held = drive(worker.insert(claim_of("key", "a", lease=0.0, keep=0.0)), worker).record
    held = drive(worker.swap(next_of(held, lease=0.0, keep=0.0), held), worker).record
    assert drive(worker.purge(10), worker).gone == 1
    held = drive(worker.insert(claim_of("key", "a")), worker).record
    assert drive(worker.delete(held), worker).won
    worker.close()


def test_a_worker_without_rights_says_who_must_init(store, sql):
    role = f"nobody_{store.names.schema}"
    sql(f"CREATE ROLE {role} LOGIN")
    worker = open_store(store.url.replace("postgres@", f"{role}@"))
    with pytest.raises(StoreError, match="onceward init"):
        drive(worker.load("key"), worker)
    worker.close()


def test_an_unknown_newer_schema_is_refused(store, sql):
    drive(store.load("?"), store)
    sql(f"UPDATE {store.names.meta} SET value = '2' WHERE name = 'version'")
    other = open_store(store.url)
    with pytest.raises(StoreError, match="version '2'"):
        drive(other.load("key"), other)
    other.close()


def test_a_newer_version_adds_its_columns_beside_an_older_one(store, monkeypatch, sql):
    held = drive(store.insert(claim_of("key", "a")), store).record
    monkeypatch.setattr(ledger_schema, "ADDED", {"later": "text"})
    monkeypatch.setattr(ledger_schema, "MINOR", ledger_schema.MINOR + 1)
    newer = open_store(store.url)
    parts = drive(MIGRATE.needed(newer)(), newer)
    rest = [
        (f"index {name}", False)
        for name in (store.names.index("due"), store.names.index("origin"), store.names.index("open"))
    ]
    assert parts == [("column later", True), *rest]
    assert not any(part.made for part in drive(MIGRATE.needed(newer)(), newer))
    sql(f"UPDATE {store.names.table} SET later = 'x'")
    minor = str(ledger_schema.MINOR)
    monkeypatch.undo()
    assert drive(store.swap(next_of(held), held), store).won  # the older version's code, which has run before
    again = open_store(store.url)
    assert drive(again.load("key"), again).record.beat == 1
    assert sql(f"SELECT later FROM {store.names.table}") == [("x",)]
    assert sql(f"SELECT value FROM {store.names.meta} WHERE name = 'layout'") == [(minor,)]
    newer.close()
    again.close()


def test_a_role_that_may_not_add_columns_is_told_to_migrate(store, monkeypatch, sql):
    drive(store.load("?"), store)
    role = f"worker_{store.names.schema}"
    sql(f"CREATE ROLE {role} LOGIN")
    sql(f"GRANT USAGE ON SCHEMA {store.names.schema} TO {role}")
    sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {store.names.schema} TO {role}")
    monkeypatch.setattr(ledger_schema, "ADDED", {"later": "text"})
    monkeypatch.setattr(ledger_schema, "MINOR", ledger_schema.MINOR + 1)
    worker = open_store(store.url.replace("postgres@", f"{role}@"))
    with pytest.raises(StoreError, match="onceward migrate"):
        drive(worker.load("key"), worker)
    worker.close()


def test_doctor_is_content_with_a_plain_server(store):
    drive(store.load("?"), store)
    assert {one.level for one in findings(store).values()} == {"ok"}


@pytest.mark.parametrize(
    ("setting", "check", "level"),
    [
        ("synchronous_commit=off", "synchronous_commit", "error"),
        ("default_transaction_isolation=serializable", "isolation", "warning"),
    ],
)
def test_doctor_reads_the_settings_of_the_session(setting, check, level, schema):
    store = open_store(f"{schema}&options=-c{setting.replace('=', '%3D')}")
    assert findings(store)[check].level == level
    store.close()


def test_doctor_sees_a_clock_that_is_behind_the_ledger(moved):
    url, move = moved
    store = open_store(url)
    drive(store.insert(claim_of("key", "a")), store)
    assert "clock" not in findings(store)
    move(-60)
    assert findings(store)["clock"].level == "warning"
    store.close()


@pytest.mark.parametrize(("moves", "told"), [(60, "ahead of this host"), (-60, "behind this host")])
def test_doctor_compares_the_clock_of_a_server_with_its_hosts(moved, moves, told):
    url, move = moved
    store = open_store(url)
    drive(store.load("key"), store)
    assert "clock" not in findings(store)
    move(moves)
    assert told in findings(store)["clock"].says
    store.close()


def test_a_fence_grows_although_the_clock_steps_back(moved):
    url, move = moved
    store = open_store(url)
    first = drive(store.insert(claim_of("key", "a")), store).record
    assert drive(store.delete(first), store).won
    purged = drive(store.insert(claim_of("other", "a", lease=0.0, keep=0.0)), store).record
    move(1)
    drive(store.purge(10), store)
    move(-3600)
    for key, before in (("key", first), ("other", purged)):
        assert drive(store.insert(claim_of(key, "b")), store).record.fence > before.fence
    store.close()


def database_of(postgres, encoding):
    """Return the URL of a new database of that encoding."""
    name = f"of_{encoding.lower()}"
    postgres.sql(f"DROP DATABASE IF EXISTS {name}")
    postgres.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    return postgres.url.replace("/test", f"/{name}")


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP"])
def test_a_database_that_cannot_keep_every_text_is_refused(encoding, postgres):
    store = open_store(database_of(postgres, encoding))
    with pytest.raises(StoreError, match=f"encoding {encoding}, .* ENCODING 'UTF8'"):
        drive(store.load("key"), store)
    assert not FOUND.needed(store)()
    store.close()


def test_a_database_that_keeps_bytes_as_they_are_is_a_ledger(postgres):
    store = open_store(database_of(postgres, "SQL_ASCII"))
    held = [
        drive(store.insert(claim_of(key, "a")), store).record for key in ("a", "é", "日本", "\U0001f600", "\U0010ffff")
    ]
    assert drive(store.select(ByKey(), None, 10), store).records == held
    assert [drive(store.select(ByKey(one.key), None, 10), store).records for one in held] == [[one] for one in held]
    store.close()


@pytest.mark.parametrize("end", ["_meta", "_expiry", "_pkey"])
def test_a_ledger_is_not_named_like_a_part_of_another(end, postgres):
    with pytest.raises(ValueError, match="choose another end"):
        open_store(f"{postgres.url}?table=orders{end}")


def test_a_key_with_a_nul_is_not_cut_off(store):
    with pytest.raises(StoreError, match="NUL"):
        drive(store.insert(claim_of("a\0b", "a")), store)
    assert drive(store.load("a"), store).record is None


def test_psql_shows_readable_times(store, sql):
    drive(store.insert(claim_of("key", "a")), store)
    ((lease,),) = sql(f"SELECT lease_until > now() FROM {store.names.table} WHERE key = 'key'")
    assert lease


def test_claims_purge_what_is_expired(store, sql):
    old = [claim_of(f"old {i}", "a", lease=0.0, keep=0.0) for i in range(50)]
    drive(store.insert_many(old), store)
    for i in range(150):
        drive(store.insert(claim_of(f"new {i}", "a")), store)
    assert sql(f"SELECT count(*) FROM {store.names.table} WHERE key LIKE 'old%'") == [(0,)]
    assert sql(f"SELECT count(*) FROM {store.names.table}") == [(150,)]


def test_the_database_says_what_each_column_is(store, sql):
    drive(store.load("?"), store)
    said = "SELECT attname, col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
    told = dict(sql(said, store.names.table))
    assert set(told) == set(Record._fields)
    assert all(told.values())


# --- the index by status ----------------------------------------------------------------------------------------------


def usable(store, sql):
    return sql("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", store.names.index("open"))


def parked_keys(store):
    page = drive(store.select(ByKey(criteria=Criteria(("PARKED",))), None, 10), store)
    return [record.key for record in page.records]


@pytest.fixture
def parked(store):
    for number in range(20):
        held = drive(store.insert(claim_of(f"key {number}", "a")), store).record
        drive(store.swap(next_of(held, status="PARKED" if number == 7 else "COMPLETED", lease=0.0), held), store)
    return ["key 7"]


def test_a_new_ledger_finds_what_is_parked_by_its_index(store, sql, parked, monkeypatch):
    assert usable(store, sql) == [(True,)]
    looked = []
    monkeypatch.setattr("onceward.stores.postgres.queries.next_page", lambda *told: looked.append(told[2]))
    assert parked_keys(store) == parked
    assert looked == [1]


def test_a_former_versions_ledger_gets_the_index_by_migrate_alone(store, sql, parked):
    sql(f"DROP INDEX {store.names.index('open')}")
    again = open_store(store.url)
    assert parked_keys(again) == parked
    assert usable(store, sql) == []
    for made in (True, False):
        assert drive(MIGRATE.needed(again)(), again)[-1] == (f"index {store.names.index('open')}", made)
    assert usable(store, sql) == [(True,)]
    assert parked_keys(again) == parked
    again.close()


def test_migrate_makes_an_index_anew_whose_building_was_stopped(store, sql, parked):
    sql(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass('{store.names.index('open')}')")
    assert parked_keys(store) == parked
    assert drive(MIGRATE.needed(store)(), store)[-1].made
    assert usable(store, sql) == [(True,)]


def test_migrate_waits_longer_for_an_index_than_for_a_request(store, sql, postgres):
    drive(store.load("?"), store)
    sql(f"DROP INDEX {store.names.index('open')}")
    hasty = open_store(f"{store.url}&timeout=2")
    with psycopg.connect(postgres.url, autocommit=False) as other:
        other.execute(
            f"INSERT INTO {store.names.table} SELECT 'k', 'PARKED', 'o', 1, 1, now(), 1, NULL, NULL, NULL, now()"
        )
        timer = threading.Timer(4, other.commit)
        timer.start()
        assert drive(MIGRATE.needed(hasty)(), hasty)[-1].made
        timer.join()
    assert parked_keys(hasty) == ["k"]
    hasty.close()


def test_only_the_owner_of_the_table_may_make_its_index(store, sql):
    drive(store.load("?"), store)
    sql(f"DROP INDEX {store.names.index('open')}")
    role = f"plain_{store.names.schema}"
    sql(f"CREATE ROLE {role} LOGIN")
    sql(f"GRANT USAGE ON SCHEMA {store.names.schema} TO {role}")
    sql(f"GRANT SELECT ON {store.names.table}, {store.names.meta} TO {role}")
    worker = open_store(store.url.replace("postgres@", f"{role}@"))
    with pytest.raises(StoreError, match="only the table's owner may make its index"):
        drive(MIGRATE.needed(worker)(), worker)
    worker.close()


@pytest.fixture
def lattice(store):
    """A record of every kind, by the server's clock: an hour apart, so that the test's own time does not matter."""
    drive(store.load("?"), store)
    statuses = ("IN_PROGRESS", "COMPLETED", "RELEASED", "PARKED", "FROZEN")
    times = [f"now() - interval '{hours} hours'" for hours in (1, 3)]
    spans = [
        times,
        [*times, "now() + interval '9 hours'"],
        [*times, "NULL"],
        [*times, "now() + interval '9 hours'", "NULL"],
    ]
    return [
        f"('k{n:03}', '{status}', 'o', 1, 1, {lease}, 1, {made}, {written}, {ends})"
        for n, (status, made, lease, written, ends) in enumerate(itertools.product(statuses, *spans))
    ]


def test_postgres_finds_what_python_finds(store, sql, lattice):
    columns = "key, status, owner, fence, beat, lease_until, attempts, created_at, updated_at, expires_at"
    sql(f"INSERT INTO {store.names.table} ({columns}) VALUES {', '.join(lattice)}")
    page = drive(store.select(ByKey(), None, 1000), store)
    assert len(page.records) == len(lattice)
    for states in ((), *((state,) for state in STATES), ("PARKED", "LAPSED")):
        for older, newer in ((None, None), (7200.0, None), (None, 7200.0), (1800.0, 7200.0)):
            criteria = Criteria(states, older, newer)
            found = drive(store.select(ByKey(criteria=criteria), None, 1000), store).records
            assert found == [one for one in page.records if meets(one, criteria.clause, page.now)]


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_large_ledger_is_counted_without_reading_it(store, sql, monkeypatch, partitioned):
    names = store.names
    if partitioned:
        statements = ledger_schema.schema(names)
        statements[0] = statements[0].rpartition(" WITH (")[0] + " PARTITION BY HASH (key)"
        sql(f"CREATE SCHEMA IF NOT EXISTS {names.schema}")
        for statement in (*statements, *ledger_schema.indexes(names).values()):
            sql(statement)
        for part in range(2):
            sql(
                f"CREATE TABLE {names.schema}.part_{part} PARTITION OF {names.table} FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
            )
    for number in range(30):
        held = drive(store.insert(claim_of(f"key {number}", "a", lease=0.0, keep=0.0)), store).record
        status = ("COMPLETED", "PARKED", "IN_PROGRESS")[min(number % 10, 2)] if number < 20 else "COMPLETED"
        drive(store.swap(next_of(held, status=status, lease=0.0, keep=0.0 if number < 5 else None), held), store)
    ledger = Ledger(store)
    assert ledger.estimate() is None  # it is small
    sql(f"ANALYZE {names.table}")
    for module in ("sql.store", "ledger_reader"):
        monkeypatch.setattr(f"onceward.stores.{module}.READ", 10)
    assert ledger.estimate() == (ledger.stats(), {"total", "COMPLETED"})
    sql(f"DROP INDEX {names.index('open')}")
    assert ledger.estimate() is None

"""Making, printing, migrating and inspecting a ledger in PostgreSQL, and the least rights that a worker needs."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from onceward import StoreError
from onceward.core.drivers import drive
from onceward.core.record import Record
from onceward.core.selections import ByKey
from onceward.core.views import Criteria
from onceward.stores import open_store
from onceward.stores.capabilities import EXISTS, INSPECT, MIGRATE, PROVISION, TEMPLATE
from onceward.stores.ledger import Ledger
from onceward.stores.postgres import schema as ledger_schema
from onceward.stores.sql.finding import page_of
from onceward.testing.bench import claim_of, next_of


@pytest.fixture
def store(schema):
    store = open_store(schema)
    yield store
    store.close()


def findings(store):
    return {one.check: one for one in INSPECT.require(store)().findings()}


def test_init_makes_the_tables_once(store):
    assert not EXISTS.require(store)()
    make = PROVISION.require(store)
    assert [part.made for part in drive(make(frozenset()), store)] == [True, True]
    assert EXISTS.require(store)()
    assert [part.made for part in drive(make(frozenset()), store)] == [False, False]


def test_first_uses_at_once_make_one_ledger(schema):
    stores = [open_store(schema) for _ in range(6)]
    holders, start = [], threading.Barrier(6)

    def use(store, owner):
        start.wait()
        reply = drive(store.insert(claim_of("key", owner)), store)
        holders.append((owner, reply.record.owner))  # who won is known by the owner: a request can be sent again
        store.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, stores, [f"o{n}" for n in range(6)]))
    assert len(holders) == 6
    assert len({holder for _, holder in holders}) == 1
    assert sum(owner == holder for owner, holder in holders) == 1


def test_the_printed_sql_makes_a_ledger(store, postgres):
    text = TEMPLATE.require(store)("sql", frozenset())
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(text)
    assert EXISTS.require(store)()
    assert drive(store.insert(claim_of("key", "a")), store).won


@pytest.fixture
def role(store, sql):
    """Make a role with these rights, and return its store."""
    made = []

    def role(*grants):
        name = f"role_{store.names.schema}"
        sql(f"CREATE ROLE {name} LOGIN")
        for grant in grants:
            sql(f"{grant} TO {name}")
        made.append(open_store(store.url.replace("postgres@", f"{name}@")))
        return made[-1]

    yield role
    for one in made:
        one.close()


def test_a_worker_needs_no_more_rights_than_printed(store, role):
    drive(PROVISION.require(store)(frozenset()), store)
    lines = TEMPLATE.require(store)("sql", frozenset()).splitlines()
    grants = [line.removeprefix("-- ").partition(" TO worker")[0] for line in lines if line.startswith("-- GRANT")]
    worker = role(*grants)
    held = drive(worker.insert(claim_of("key", "a", lease=0.0, keep=0.0)), worker).record
    held = drive(worker.swap(next_of(held, lease=0.0, keep=0.0), held), worker).record
    assert drive(worker.purge(10), worker).deleted == 1
    held = drive(worker.insert(claim_of("key", "a")), worker).record
    assert drive(worker.delete(held), worker).won


def test_a_worker_without_rights_says_who_must_init(role):
    worker = role()
    with pytest.raises(StoreError, match="onceward init"):
        drive(worker.load("key"), worker)


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
    parts = drive(MIGRATE.require(newer)(), newer)
    rest = [
        (f"index {name}", False)
        for name in (store.names.index("due"), store.names.index("origin"), store.names.index("open"))
    ]
    assert parts == [("column later", True), *rest]
    assert not any(part.made for part in drive(MIGRATE.require(newer)(), newer))
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


def test_a_role_that_may_not_add_columns_is_told_to_migrate(store, monkeypatch, role):
    drive(store.load("?"), store)
    schema = store.names.schema
    worker = role(f"GRANT USAGE ON SCHEMA {schema}", f"GRANT ALL ON ALL TABLES IN SCHEMA {schema}")
    monkeypatch.setattr(ledger_schema, "ADDED", {"later": "text"})
    monkeypatch.setattr(ledger_schema, "MINOR", ledger_schema.MINOR + 1)
    with pytest.raises(StoreError, match="onceward migrate"):
        drive(worker.load("key"), worker)


@pytest.mark.parametrize(
    ("setting", "check", "level"),
    [
        ("synchronous_commit=off", "synchronous_commit", "error"),
        ("default_transaction_isolation=serializable", "isolation", "warning"),
    ],
)
def test_doctor_reads_the_settings_of_the_session(setting, check, level, schema):
    store = open_store(f"{schema}&options=-c{setting.replace('=', '%3D')}")
    drive(store.load("?"), store)
    found = findings(store)
    assert found[check].level == level
    assert {one.level for name, one in found.items() if name != check} == {"ok"}
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
    assert not EXISTS.require(store)()
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


def test_the_database_says_what_each_column_is(store, sql):
    drive(store.load("?"), store)
    said = "SELECT attname, col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
    told = dict(sql(said, store.names.table))
    assert set(told) == set(Record._fields)
    assert all(told.values())


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
    monkeypatch.setattr(
        "onceward.stores.postgres.queries.page_of",
        lambda *told: looked.append(told[2][0][1]) or page_of(*told),
    )
    assert parked_keys(store) == parked
    assert looked == [1]


def test_a_former_versions_ledger_gets_the_index_by_migrate_alone(store, sql, parked):
    sql(f"DROP INDEX {store.names.index('open')}")
    again = open_store(store.url)
    assert parked_keys(again) == parked
    assert usable(store, sql) == []
    for made in (True, False):
        assert drive(MIGRATE.require(again)(), again)[-1] == (f"index {store.names.index('open')}", made)
    assert usable(store, sql) == [(True,)]
    assert parked_keys(again) == parked
    again.close()


def test_migrate_makes_an_index_anew_whose_building_was_stopped(store, sql, parked):
    sql(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass('{store.names.index('open')}')")
    assert parked_keys(store) == parked
    assert drive(MIGRATE.require(store)(), store)[-1].made
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
        assert drive(MIGRATE.require(hasty)(), hasty)[-1].made
        timer.join()
    assert parked_keys(hasty) == ["k"]
    hasty.close()


def test_only_the_owner_of_the_table_may_make_its_index(store, sql, role):
    drive(store.load("?"), store)
    sql(f"DROP INDEX {store.names.index('open')}")
    worker = role(
        f"GRANT USAGE ON SCHEMA {store.names.schema}", f"GRANT SELECT ON {store.names.table}, {store.names.meta}"
    )
    with pytest.raises(StoreError, match="only the table's owner may make its index"):
        drive(MIGRATE.require(worker)(), worker)


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

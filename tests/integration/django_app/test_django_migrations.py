"""The ledger in a project's own database, by the project's migrations."""

import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.stores.capabilities import MIGRATE
from onceward.stores.mysql import schema as mysql
from onceward.stores.postgres import schema as postgresql
from onceward.stores.sqlite import schema as sqlite
from stores.schemas import provisioned, schema_of
from web.django_shops import Shop

pytestmark = pytest.mark.sampled(empty=1)


def ledger_url(database):
    return database.replace("sqlite3://", "sqlite:///")


def test_migrate_makes_the_ledger_that_init_makes(empty, bare):
    told = bare.run(
        """
        import sys
        from django.core.management import call_command
        sys.stderr = sys.stdout
        call_command("check", "--database", "default")
        call_command("makemigrations", "--check")
        call_command("migrate", verbosity=0)
        print("--- then ---")
        call_command("makemigrations", "--check")
        call_command("check", "--database", "default")
        """
    )
    before, after = told.split("--- then ---")
    assert "No changes" in before
    assert "onceward.W002" in before
    assert "No changes" in after
    assert "onceward" not in after
    assert schema_of(bare.database) == provisioned(ledger_url(empty()))
    ours = Once(ledger_url(bare.database))
    assert [part for part in drive(MIGRATE.require(ours.store)(), ours.store) if part.made] == []
    ours.close()


def test_a_ledger_that_is_there_stays_as_it_is(bare):
    once = Once(ledger_url(bare.database))
    once.run("a", len, ())
    once.close()
    before = schema_of(bare.database)
    bare.manage("migrate", "-v0")
    assert schema_of(bare.database) == before
    assert "len:a" in bare.manage("onceward", "ls")


def test_a_migration_is_never_undone(small):
    assert "IrreversibleError" in small.manage("migrate", "onceward", "zero", status=1)
    assert "CREATE TABLE" in small.manage("sqlmigrate", "onceward", "0001")


def test_each_layout_has_its_migration(small):
    """One that is added to a schema needs a migration that makes it: it has MakeLedger with the new numbers."""
    told = small.run(
        """
        from django.db.migrations.loader import MigrationLoader
        from onceward.django.schema import MakeLedger
        loader = MigrationLoader(None)
        last = loader.graph.leaf_nodes("onceward")[0]
        steps = [step for node in loader.graph.forwards_plan(last) for step in loader.graph.nodes[node].operations]
        print([step.layouts for step in steps if isinstance(step, MakeLedger)][-1])
        """
    )
    assert eval(told) == {"postgresql": postgresql.MINOR, "mysql": mysql.MINOR, "sqlite": sqlite.MINOR}


def test_the_ledger_is_in_the_database_that_the_settings_name(tmp_path):
    shop = Shop(f"sqlite3://{tmp_path}/shop.db", "two_databases")
    shop.manage("migrate", "-v0")
    assert schema_of(shop.database) == []
    assert "onceward.W002" in shop.manage("check", "--database", "ledger")
    shop.manage("migrate", "-v0", "--database", "ledger")
    assert "no issues" in shop.manage("check", "--database", "ledger", "--database", "default")
    told = shop.run(
        """
        from onceward.django import once
        from onceward.django.models import LedgerRecord
        once.run("a", len, ())
        print(LedgerRecord.objects.using("ledger").count(), once.store.url)
        """
    )
    assert told == f"1 sqlite:////{str(tmp_path)[1:]}/shop.db.ledger\n"
    assert schema_of(f"{shop.database}.ledger") != []

"""A Django project's ledger: its migrations, checks, commands and the admin."""

import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.stores.capabilities import MIGRATE
from onceward.stores.mysql import schema as mysql
from onceward.stores.postgres import schema as postgresql
from onceward.stores.sqlite import schema as sqlite
from stores.schemas import provisioned, schema_of
from tables import each
from web.django_shops import Shop

pytestmark = pytest.mark.sampled(empty=1)


def checks(shop, **changed):
    """Return the ids and texts of the checks with other settings."""
    told = shop.run(
        f"""
        from django.core.checks import run_checks
        from django.test import override_settings
        with override_settings(**{changed!r}):
            print([(message.id, message.msg) for message in run_checks(tags=["onceward"])])
        """
    )
    return eval(told)


@each(
    ("setting", "number", "text"),
    [
        ({"DATABASES": "default"}, 1, "unknown names: DATABASES"),
        ({"lease": -1}, 2, "lease"),
        ({"DATABASE": "other"}, 3, "none of DATABASES: default"),
        ({"OPTIONS": {"lane": 4}}, 3, "unknown option lane"),
    ],
)
def test_a_wrong_setting_is_said(small, setting, number, text):
    ((found, told),) = checks(small, ONCEWARD=setting)
    assert found == f"onceward.E00{number}"
    assert text in told


def test_a_file_of_sqlite_that_is_named_by_a_uri_is_refused():
    assert "is a URI" in Shop("sqlite3:file:shop.db").manage("check", status=1)


def test_atomic_requests_is_warned_of(small):
    told = small.run(
        """
        from django.core.checks import run_checks
        from django.db import connections
        connections.settings["default"]["ATOMIC_REQUESTS"] = True
        print([message.id for message in run_checks(tags=["onceward"])])
        """
    )
    assert told == "['onceward.W001']\n"


def test_the_url_of_a_database_has_all_that_its_settings_say(small):
    told = small.run(
        """
        from django.db import connections
        from onceward.web.django_project import project_url
        from django.test import override_settings

        def url(engine, options=(), **place):
            given = {"ENGINE": f"django.db.backends.{engine}", "OPTIONS": dict(options), **place}
            connections.settings["other"] = connections.configure_settings({"default": {}, "other": given})["other"]
            if hasattr(connections._connections, "other"):
                del connections["other"]
            with override_settings(ONCEWARD={"DATABASE": "other"}):
                print(project_url())

        url("postgresql", NAME="a b", USER="u@x", PASSWORD="p/w:1", HOST="db", PORT="5433")
        url("postgresql", {"pool": True, "sslmode": "require", "assume_role": "r"}, NAME="shop", HOST="/run/db", USER="u")
        url("postgresql", {"service": "shop"}, NAME="", USER=None, PASSWORD=None, HOST=None, PORT=None)
        import pymysql
        pymysql.install_as_MySQLdb()
        url("mysql", {"ssl": {"ca": "/etc/ca.pem"}}, NAME="shop", USER="u", HOST="::1", PORT=3307)
        url("mysql", {"ssl": {"x": 1}, "unix_socket": "/run/m.sock"}, NAME="shop", USER="u", PASSWORD="p")
        url("mysql", NAME=None, USER=None, PASSWORD=None, HOST=None, PORT=None)
        url("sqlite3", NAME="/tmp/a b#.db")
        """
    )
    assert told.splitlines() == [
        "postgresql://u%40x:p%2Fw%3A1@db:5433/a%20b",
        "postgresql://u@/shop?host=%2Frun%2Fdb&sslmode=require&options=-c%20role%3Dr",
        "postgresql:///?service=shop",
        "mysql://u@[::1]:3307/shop?ca=%2Fetc%2Fca.pem",
        "mysql://u:p@localhost/shop?socket=%2Frun%2Fm.sock&tls=on",
        "mysql:///",
        "sqlite:////tmp/a%20b%23.db",
    ]


ORDERS = """
import logging
logging.disable(logging.CRITICAL)
from onceward.django import once
from shop.views import CardDeclined, order
for key in ("k1", "k2", "k3"):
    try:
        order(key, "A-1", 10**7 if key < "k3" else 5)
    except CardDeclined:
        pass
"""


def test_commands_work_on_the_projects_ledger(shop):
    shop.run(ORDERS)
    listed = shop.manage("onceward", "ls", "--status", "PARKED", "--json")
    assert listed.count("shop.order:k") == 2
    assert "unparked" in shop.manage("onceward", "unpark", "shop.order:k1")
    assert "no such key" in shop.manage("onceward", "show", "shop.order:none", status=1)
    assert "Usage: manage.py onceward" in shop.manage("onceward", "unpark", status=2)
    told = shop.run(
        """
        import io, os
        from django.core.management import call_command
        out = io.StringIO()
        try:
            call_command("onceward", "ls", "--json", stdout=out)
        except SystemExit as end:
            print(end.code, out.getvalue().count("shop.order"), "ONCEWARD_STORE" in os.environ)
        """
    )
    assert told == "0 3 False\n"


ADMIN = (
    ORDERS
    + """
import re
from html import unescape
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.test import Client

LIST = "/admin/onceward/ledgerrecord/"

def visitor(name, *permissions):
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="onceward", codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client

def keys(client, query=""):
    page = client.get(LIST + query)
    return re.findall(r'field-shown_key"><a [^>]*>([^<]+)', page.content.decode()) if page.status_code == 200 else page.status_code

def story(client, key):
    return client.get(f"{LIST}{quote(key)}/change/").content.decode()

def act(client, action, *keys, follow=True, **fields):
    chosen = {"action": action, "index": 0, "_selected_action": keys}
    shown = client.post(LIST, chosen)
    if shown.status_code != 200:
        return shown.status_code
    page = shown.content.decode()
    versions = re.findall('name="version" value="([^"]*)"', page)
    there = re.findall('<input type="hidden" name="_selected_action" value="([^"]*)"', page)
    answer = client.post(LIST, {**chosen, "_selected_action": there, "confirmed": "yes", "version": versions, **fields}, follow=True)
    text = unescape(answer.content.decode())
    return re.findall('<li class="(success|error)">(.*?)</li>', text) or re.findall('class="errornote">(.*?)<', text)

def state(key):
    record, _ = once.ledger.show(key)
    return record.status, record.result
"""
)


def test_the_admin_lists_and_shows_keys(shop):
    told = shop.run(
        ADMIN
        + """
viewer = visitor("v", "view_ledgerrecord")
print([key.rpartition(":")[2] for key in keys(viewer)])
print(keys(visitor("nobody")))
print([key.rpartition(":")[2] for key in keys(viewer, "?state=PARKED")], keys(viewer, "?q=shop.order:k3"), keys(viewer, "?q=none"))
print([len(keys(viewer, f"?changed={age}")) for age in ("1h", "-1h")])
print([len(keys(viewer, f"?state={name}")) for name in ("COMPLETED", "LAPSED", "RELEASED", "UNSENT")])
page = story(viewer, "shop.order:k1")
print("CardDeclined" in page, "fix the cause" in page, "Unpark" in page)
with_payload = visitor("p", "view_ledgerrecord", "view_payload")
print("<pre>1</pre>" in story(with_payload, "shop.order:k3"), "<pre>1</pre>" in story(viewer, "shop.order:k3"), "(hidden)" in story(viewer, "shop.order:k3"))
print(viewer.get(f"{LIST}nothing/change/").status_code, visitor("w").get(f"{LIST}{quote('shop.order:k1')}/change/").status_code)
print(viewer.get(f"{LIST}add/").status_code, viewer.post(f"{LIST}{quote('shop.order:k1')}/delete/").status_code)
"""
    )
    assert told.splitlines() == [
        "['k1', 'k2', 'k3']",
        "403",
        "['k1', 'k2'] ['shop.order:k3'] []",
        "[0, 3]",
        "[1, 0, 0, 0]",
        "True True False",
        "True False True",
        "404 403",
        "403 403",
    ]


def test_what_the_admin_does_is_checked_and_logged(shop):
    told = shop.run(
        ADMIN
        + """
boss = visitor("b", "view_ledgerrecord", "unpark_ledgerrecord", "settle_ledgerrecord", "clear_ledgerrecord")
print(act(boss, "unpark", "shop.order:k1", "shop.order:k3", why=""), state("shop.order:k1")[0])
print(act(boss, "unpark", "shop.order:k1", "shop.order:k3", why="fixed"), state("shop.order:k1")[0])
print(act(boss, "settle", "shop.order:k2", why="paid", detail="{"), state("shop.order:k2")[0])
print(act(boss, "settle", "shop.order:k2", why="paid", detail='{"secret": 7}'), state("shop.order:k2"))
print(act(boss, "clear", "shop.order:k3", why="wrong order"), [record.key for record, _ in once.ledger.records("shop.order:k3")])
print([(entry.user.username, entry.object_id, entry.change_message) for entry in LogEntry.objects.order_by("pk")])
print("fixed" in story(boss, "shop.order:k1"), "secret" in story(boss, "shop.order:k2"))
unparker = visitor("u", "view_ledgerrecord", "unpark_ledgerrecord")
print(act(unparker, "clear", "shop.order:k1", why="no"), act(unparker, "settle", "shop.order:k2", why="no", detail="1"), state("shop.order:k1")[0])
"""
    )
    lines = told.splitlines()
    assert lines[0] == "['Say why. The audit keeps it.'] PARKED"
    assert lines[1] == "[('success', 'Unpark shop.order:k1: unparked: the next delivery runs')] RELEASED"
    assert lines[2].startswith("['The result is not JSON: ")
    assert lines[2].endswith(" PARKED")
    assert lines[3] == """[('success', 'Settle shop.order:k2: completed by hand')] ('COMPLETED', '{"secret":7}')"""
    assert lines[4] == "[('success', 'Clear shop.order:k3: cleared: the next delivery runs')] []"
    assert lines[5] == str(
        [
            ("b", "shop.order:k1", "unpark: unparked: the next delivery runs. Why: fixed"),
            ("b", "shop.order:k2", "settle: completed by hand. Why: paid"),
            ("b", "shop.order:k3", "clear: cleared: the next delivery runs. Why: wrong order"),
        ]
    )
    assert lines[6] == "True False"
    assert lines[7] == "302 302 RELEASED"


def test_a_key_that_changes_or_is_held_is_not_acted_on_unseen(small):
    told = small.run(
        ADMIN
        + """
boss = visitor("b", "view_ledgerrecord", "unpark_ledgerrecord", "clear_ledgerrecord", "settle_ledgerrecord")
chosen = {"action": "unpark", "index": 0, "_selected_action": ["shop.order:k1"], "confirmed": "yes", "why": "x"}
print(re.findall('class="error">(.*?)<', boss.post(LIST, {**chosen, "version": ["a.1.2"]}, follow=True).content.decode()))
held = once.acquire("held", name="t")
print(act(boss, "clear", "t:held", why="x"))
print(act(boss, "settle", "t:held", why="x", detail="1"))
print(act(boss, "clear", "t:held", why="x", accept="yes"))
audit = next(record.key for record, _ in once.ledger.records("onceward.audit"))
print(act(boss, "clear", audit, why="x", accept="yes"))
"""
    )
    lines = told.splitlines()
    assert "the record has changed since you looked at it" in lines[0]
    assert "you have not accepted this" in lines[1]
    assert lines[2] == "[]"
    assert "cleared" in lines[3]
    assert lines[4] == "[]"


def ledger_url(database):
    return database.replace("sqlite3://", "sqlite:///")


def test_migrate_makes_the_ledger_that_init_makes(empty, bare):
    told = bare.run(
        """
        import sys
        from django.core.management import call_command
        sys.stderr = sys.stdout
        call_command("makemigrations", "--check")
        call_command("migrate", verbosity=0)
        print("--- then ---")
        call_command("makemigrations", "--check")
        call_command("check", "--database", "default")
        """
    )
    before, after = told.split("--- then ---")
    assert "No changes" in before
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
    shop.manage("migrate", "-v0", "--database", "ledger")
    told = shop.manage("check", "--database", "ledger", "--database", "default")
    assert "identified 1 issue" in told
    assert "(onceward.W002) The ledger is in the database 'ledger'" in told
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

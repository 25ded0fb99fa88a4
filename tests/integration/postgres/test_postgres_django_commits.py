"""Django's transactions around guarded code, on a database whose deferred constraint fails at COMMIT."""

import hashlib
import hmac
from unittest.mock import Mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, transaction
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from fixtures import closing_fixture
from onceward import Once
from onceward.stores.capabilities import AnotherDatabase
from onceward.stores.postgres.session import PostgresSession
from onceward.web import Rules, Scope
from onceward.web.django import idempotent
from onceward.web.webhooks import GitHub, WebhookReceiver
from onceward.web.webhooks.django import view
from stores.postgres_hands import django_connection, records

SIGNED = "sha256=" + hmac.new(b"secret", b"{}", hashlib.sha256).hexdigest()
HEADERS = {"X-GitHub-Delivery": "1", "X-GitHub-Event": "ping", "X-Hub-Signature-256": SIGNED, "Idempotency-Key": '"k"'}
MIDDLEWARE = "onceward.web.django.IdempotencyMiddleware"
RULES = Rules(scope=Scope.EVERYBODY)


@pytest.fixture
def django(postgres, schema, sql):
    """A database with ATOMIC_REQUESTS that is not the default one. A row needs its parent when it commits."""
    alias = schema.partition("schema=")[2]
    sql(f"CREATE TABLE parents_{alias} (id int PRIMARY KEY)")
    sql(f"CREATE TABLE rows_{alias} (parent int REFERENCES parents_{alias} DEFERRABLE INITIALLY DEFERRED)")
    made = django_connection(alias, postgres.url)
    made.settings_dict["ATOMIC_REQUESTS"] = True
    yield made
    made.close()
    del connections.settings[alias]


@pytest.fixture
def write(django):
    """A handler of events, requests and orders."""

    def write(asked=None):
        with django.cursor() as cursor:
            cursor.execute(f"INSERT INTO rows_{django.alias} VALUES (1)")
        return HttpResponse("done")

    return write


@pytest.fixture
def rows(django, sql):
    return lambda: len(sql(f"SELECT 1 FROM rows_{django.alias}"))


@pytest.fixture
def repair(django, sql):
    """What lets the next COMMIT succeed."""
    return lambda: sql(f"INSERT INTO parents_{django.alias} VALUES (1)")


# A ledger in the database.
inside = closing_fixture(Once, "schema")
# A ledger that is elsewhere.
beside = closing_fixture(lambda tmp_path: Once(f"sqlite:///{tmp_path}/ledger.db"))
once = closing_fixture(
    lambda request, inside, beside, schema: (
        {"in the database": inside, "elsewhere": beside}.get(request.param)
        or Once(schema.replace("/test?", "/postgres?"))
    ),
    params=["in the database", "in another one of its server", "elsewhere"],
)


def hook(once, handler, **options):
    return WebhookReceiver(once, GitHub("secret"), handler, name="hooks", **options)


def deliver(target, **settings):
    """Return the status of one request to a view."""
    with override_settings(ROOT_URLCONF=(path("hook", target),), **settings):
        client = Client(raise_request_exception=False)
        return client.post("/hook", b"{}", "application/json", headers=HEADERS).status_code


@pytest.mark.parametrize("guard", ["webhook", "view", "middleware"])
def test_an_effect_whose_commit_fails_is_made_by_the_next_delivery(once, write, rows, repair, guard):
    target, settings = write, {}
    if guard == "webhook":
        target = view(hook(once, write))
    elif guard == "view":
        target = idempotent(once, RULES, name="http")(write)
    else:
        settings = {"MIDDLEWARE": [MIDDLEWARE], "ONCEWARD": {"once": once, "rules": RULES, "name": "http"}}
    assert deliver(target, **settings) >= 500
    assert (rows(), records(once)) == (0, [("RELEASED", 1)])
    repair()
    assert [deliver(target, **settings), deliver(target, **settings)] == [200, 200]
    assert (rows(), records(once)) == (1, [("COMPLETED", 2)])


def test_the_record_of_a_webhook_commits_with_its_effect_in_one_database_also_after_it_was_in_another(
    inside, django, write, rows, repair, monkeypatch
):
    seen = []

    def handle(event):
        write()
        transaction.on_commit(lambda: seen.append((rows(), records(inside))), using=django.alias)

    target = view(hook(inside, handle))
    with monkeypatch.context() as patched:
        patched.setattr(PostgresSession, "check_place", Mock(side_effect=AnotherDatabase))
        assert deliver(target) == 500
    repair()
    assert deliver(target) == 200
    assert seen == [(1, [("COMPLETED", 2)])]


@pytest.fixture
def other(django, postgres, repair):
    """A second database with ATOMIC_REQUESTS."""
    repair()
    made = django_connection(f"{django.alias}_other", postgres.url)
    connections.settings[made.alias]["ATOMIC_REQUESTS"] = True
    yield made
    made.close()
    del connections.settings[made.alias]


@pytest.mark.parametrize("guard", ["webhook", "idempotent"])
@pytest.mark.parametrize("late", ["django", "other"])
def test_a_hook_that_fails_after_one_of_two_commits_leaves_one_row_in_each(
    once, django, other, write, rows, guard, late
):
    def handle(event):
        with other.cursor() as cursor:
            cursor.execute(f"INSERT INTO rows_{django.alias} VALUES (1)")
        transaction.on_commit(lambda: 1 / 0, using={"django": django, "other": other}[late].alias)
        return write()

    guarded = idempotent(once, RULES, name="http")
    target = view(hook(once, handle)) if guard == "webhook" else guarded(handle)
    assert [deliver(target), deliver(target)] == [500, 200]
    assert (rows(), records(once)) == (2, [("COMPLETED", 1)])


def test_a_webhook_inside_an_open_transaction_is_refused_before_it_runs(inside, django, write, rows):
    request = RequestFactory().post("/hook", b"{}", "application/json", headers=HEADERS)
    with transaction.atomic(using=django.alias), pytest.raises(ImproperlyConfigured, match="Nothing has run"):
        view(hook(inside, write))(request)
    assert (rows(), records(inside)) == (0, [])


def charge(order: str, write) -> None:
    write()


@pytest.mark.filterwarnings("error")
def test_a_guarded_call_inside_a_transaction_of_djangos_warns_once_and_one_beside_it_does_not(
    inside, django, write, repair, rows
):
    guarded = inside(key="order")(charge)
    with pytest.raises(DatabaseError), transaction.atomic(using=django.alias):
        with pytest.warns(UserWarning, match=f"the database '{django.alias}'.*transactions.md"):
            guarded("a", write)
        guarded("b", write)
    assert (rows(), records(inside)) == (0, [("COMPLETED", 1)] * 2)
    repair()
    with inside.transaction("c", django):
        write()
    inside.using(name="beside").run("d", lambda: transaction.atomic(django.alias)(write)() and None)
    assert rows() == 2

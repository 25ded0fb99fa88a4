"""Django's requests around a transaction that commits effect, record and answer together, and services with it that are killed."""

import contextlib
import os
import random
import signal
import time

import pytest
from django.db import transaction

from onceward import Once, StoreError, current
from onceward.web import Rules, Scope
from onceward.web.django import answer, idempotent
from stores.postgres_hands import records
from web import django_site
from web.django_site import VIEWS, post
from web.servers import check_charged_once, gunicorn, pay_all, uvicorn

pytestmark = pytest.mark.sampled(apart=1, number=1, after=4, served=1)


@pytest.fixture
def guarded(once):
    """What guards a view."""
    return idempotent(once, Rules(scope=Scope.EVERYBODY), name="payments")


@pytest.fixture
def act(django, table):
    def act(value="effect"):
        with django.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES ('{value}')")

    return act


def twice(view):
    """Return the answers to a request and to its retry."""
    VIEWS["now"] = view
    django_site.dispatch._non_atomic_requests = getattr(view, "_non_atomic_requests", set())
    return [(told.status_code, told.content, told.headers.get("Idempotent-Replayed")) for told in (post(), post())]


@pytest.fixture(params=[False, True], ids=["", "ATOMIC_REQUESTS"])
def apart(request, django):
    """What keeps a view out of a request's transaction."""
    django.settings_dict["ATOMIC_REQUESTS"] = request.param
    return transaction.non_atomic_requests(django.alias)


def test_an_answer_commits_with_its_effect(guarded, apart, django, act, once, effects):
    from rest_framework.response import Response
    from rest_framework.views import APIView

    class Pay(APIView):
        def post(self, request, number):
            with current().transaction(django) as ours:
                act()
                response = Response({"paid": number}, 201)
                ours.result = answer(self.finalize_response(request, response))
            assert records(once) == [("COMPLETED", 1)]
            return response

    first, again = twice(apart(guarded(Pay.as_view())))
    assert first == (201, b'{"paid":7}', None)
    assert again == (201, b'{"paid":7}', "true")
    assert effects() == ["effect"]


def test_a_4xx_of_rest_framework_is_rolled_back_and_its_rendering_replayed(guarded, apart, django, act, once, effects):
    from rest_framework.decorators import api_view
    from rest_framework.exceptions import ValidationError

    @api_view(["POST"])
    def pay(request, number):
        with current().transaction(django):
            act()
            raise ValidationError({"order": ["no credit"]})

    first, again = twice(apart(guarded(pay)))
    assert first == (400, b'{"order":["no credit"]}', None)
    assert again == (*first[:2], "true")
    assert (effects(), records(once)) == ([], [("COMPLETED", 1)])


def test_a_view_in_a_requests_transaction_is_told_to_leave_it(guarded, django, act, once, effects):
    django.settings_dict["ATOMIC_REQUESTS"] = True
    told = []

    def view(request, number):
        try:
            with current().transaction(django):
                act()
        except ValueError as error:
            told.append(str(error))
            raise

    assert twice(guarded(view))[0][0] == 500
    assert "@transaction.non_atomic_requests" in told[0]
    assert (effects(), records(once)) == ([], [("RELEASED", 2)])


def test_a_durable_block_around_it_is_refused_and_one_within_it_fails(once, django, act, effects):
    with (
        transaction.atomic(using=django.alias, durable=True),
        pytest.raises(ValueError, match="would be a savepoint"),
        once.transaction("k", django),
    ):
        pytest.fail("it ran")
    assert records(once) == []
    with pytest.raises(RuntimeError, match="durable"), once.transaction("k", django):
        act()
        with transaction.atomic(using=django.alias, durable=True):
            pytest.fail("it ran")
    assert (effects(), records(once)) == ([], [("RELEASED", 1)])


def test_a_block_that_the_body_leaves_open_reports_no_success(once, django, act, effects):
    def acted():
        with transaction.atomic(django.alias):
            act()
            yield

    lines = acted()
    with pytest.raises(StoreError, match="left a block"), once.transaction("k", django):
        next(lines)
    lines.close()
    with once.transaction("next", django):
        pass
    assert (effects(), records(once)) == ([], [("RELEASED", 1), ("COMPLETED", 1)])


SERVERS = {
    "fastapi": lambda **environment: uvicorn("payments_sqlalchemy:app", "--workers", "3", **environment),
    "django": lambda **environment: gunicorn("payments_django_orm:application", "--workers", "3", **environment),
    "django, ATOMIC_REQUESTS": lambda **environment: gunicorn(
        "payments_django_orm:application", "--workers", "3", ATOMIC_REQUESTS="1", **environment
    ),
}


@pytest.fixture(params=SERVERS)
def served(request):
    return SERVERS[request.param]


@pytest.fixture
def shop(postgres, schema):
    """The environment of a service, and what reads the references of its charges."""
    name = schema.replace("ledger_", "charges_").partition("schema=")[2]
    columns = "id bigserial PRIMARY KEY, reference text NOT NULL, amount bigint NOT NULL"
    postgres.sql(f"CREATE TABLE {name} ({columns})", database="test")
    list(Once(schema).ledger.records())  # makes it
    return {"DATABASE": postgres.url, "LEDGER": schema, "CHARGES": name, "LEASE": "3"}, lambda: [
        reference for (reference,) in postgres.sql(f"SELECT reference FROM {name}", database="test")
    ]


def test_workers_that_are_killed_in_the_middle_leave_one_charge_per_key(served, shop):
    environment, references = shop
    chance, deaths = random.Random(7), 0

    def kill_one():
        nonlocal deaths
        time.sleep(0.3 + chance.random() * 0.5)
        if deaths < 8:
            for worker in server.workers():  # all of them: of several, one can have all the requests
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                deaths += 1

    with served(**environment, BANK_SECONDS="0.2") as server:
        seen = pay_all(server, 40, 5, kill_one)
    check_charged_once(environment["LEDGER"], references, 40)
    assert deaths >= 2
    assert seen["broken"]

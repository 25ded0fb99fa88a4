"""Django's requests and connections around a transaction that commits effect, record and answer together."""

import pytest
from django.db import connections, transaction

from onceward import StoreError, current
from onceward.web import Rules, Scope
from onceward.web.django import answer, idempotent
from stores.postgres_hands import django_connection
from web import django_site
from web.django_site import VIEWS, post

pytestmark = pytest.mark.sampled(apart=1, number=1, after=4)


@pytest.fixture
def django(postgres, table):
    made = django_connection(table, postgres.url)
    yield made
    made.close()
    del connections.settings[table]


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


def records(once):
    return [(record.status, record.attempts) for record, _ in once.ledger.records()]


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

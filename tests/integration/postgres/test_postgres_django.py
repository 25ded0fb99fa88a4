"""Django's requests and connections around a transaction that commits effect, record and answer together."""

import os
import signal
import time

import pytest
from django.db import DatabaseError, close_old_connections, connections, transaction
from django.template.response import SimpleTemplateResponse

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


# --- requests -----------------------------------------------------------------------------------------------------


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


def test_a_template_response_is_rendered_in_the_transaction(guarded, apart, django, act, effects):
    from django.template import engines

    def view(request, number):
        with current().transaction(django) as ours:
            act()
            response = SimpleTemplateResponse(engines["django"].from_string("paid {{ n }}"), {"n": number}, status=201)
            ours.result = answer(response)
        return response

    assert twice(apart(guarded(view))) == [(201, b"paid 7", None), (201, b"paid 7", "true")]
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


def test_set_rollback_of_a_requests_own_transaction_undoes_the_effect_and_keeps_the_answer(
    guarded, django, act, once, effects
):
    """REST framework asks for it when it makes an answer of an exception."""
    from rest_framework.decorators import api_view
    from rest_framework.exceptions import ValidationError

    django.settings_dict["ATOMIC_REQUESTS"] = True

    @api_view(["POST"])
    def pay(request, number):
        act()
        raise ValidationError({"order": ["no credit"]})

    first, again = twice(guarded(pay))
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


# --- connections --------------------------------------------------------------------------------------------------


def end_session(postgres, django):
    """Let the server end the connection between two requests."""
    with django.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        ((pid,),) = cursor.fetchall()
    close_old_connections()
    postgres.sql("SELECT pg_terminate_backend(%s, 5000)", pid)


def test_a_kept_connection_that_is_checked_is_replaced(once, postgres, django, act, effects):
    django.settings_dict |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
    django.close()
    for key in ("a", "b"):
        with once.transaction(key, django):
            act(key)
        end_session(postgres, django)
    assert (effects(), records(once)) == (["a", "b"], [("COMPLETED", 1)] * 2)


def test_a_kept_connection_that_is_not_checked_fails_once(once, postgres, django, act, effects):
    django.settings_dict |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": False}
    django.close()
    end_session(postgres, django)
    with pytest.raises((StoreError, DatabaseError)), once.transaction("k", django):
        pytest.fail("it ran")
    assert records(once) == []
    close_old_connections()  # as at the end of a request
    with once.transaction("k", django):
        act()
    assert (effects(), records(once)) == (["effect"], [("COMPLETED", 1)])


def test_a_connection_that_is_not_kept_is_closed_after_the_request(once, django, act, effects):
    django.settings_dict["CONN_MAX_AGE"] = 0
    django.close()
    for key in ("a", "b"):
        with once.transaction(key, django):
            act(key)
        close_old_connections()
        assert django.connection is None
    assert (effects(), records(once)) == (["a", "b"], [("COMPLETED", 1)] * 2)


# --- blocks within blocks -----------------------------------------------------------------------------------------


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


def test_a_hook_runs_once_after_the_commit_and_never_after_a_rollback(once, django, act, effects):
    seen = []
    with pytest.raises(ZeroDivisionError), once.transaction("k", django):
        transaction.on_commit(lambda: seen.append("rolled back"), using=django.alias)
        raise ZeroDivisionError
    with once.transaction("k", django):
        act()
        transaction.on_commit(lambda: seen.append((effects(), records(once))), using=django.alias)
    assert seen == [(["effect"], [("COMPLETED", 2)])]


# --- signals ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as below
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after", ["statement", "body", *(0.0005 * turn for turn in range(1, 9))])
def test_a_signal_whose_handler_raises_leaves_both_or_neither(once, django, act, effects, number, after):
    """In a statement of the body, in the body, or so many seconds after it."""

    def leave(*_):
        raise (SystemExit if number == signal.SIGTERM else KeyboardInterrupt)

    before = signal.signal(number, leave)
    alarm = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), number))
    left = None
    try:
        with once.transaction("k", django):
            act()
            if after == "statement":
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                with django.cursor() as cursor:
                    cursor.execute("SELECT pg_sleep(30)")
            if after == "body":
                os.kill(os.getpid(), number)
            signal.setitimer(signal.ITIMER_REAL, after)
        time.sleep(0.1)
    except (SystemExit, KeyboardInterrupt) as interrupt:
        left = interrupt
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, before)
        signal.signal(signal.SIGALRM, alarm)
    assert left is not None or isinstance(after, float)  # Python loses an interrupt of a __del__
    assert not django.in_atomic_block
    assert (effects(), records(once)) in [([], []), ([], [("RELEASED", 1)]), (["effect"], [("COMPLETED", 1)])]
    with once.transaction("next", django):
        act("next")
    assert "next" in effects()


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

"""Handlers of a Django project on its own ledger: functions, views, tasks, and its test cases."""

import pytest

from servers.environments import environment

pytestmark = pytest.mark.sampled(empty=1)

GUARDED = """
import json
from django.db import IntegrityError, connection, transaction
from onceward import StoreError, current
from onceward.django import atomic, once
from shop.models import Order

def state(key):
    record, _ = once.ledger.show(key)
    return record.status, Order.objects.count()

def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__

def guarded(function):
    return once(key="key", name="t", on_error="release", lease=30)(atomic(function))
"""
WEB = """
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from onceward import current
from onceward.django import atomic, idempotent, once
from onceward.web import Route, Rules, Scope
from shop.models import Order

RULES, KEY = Rules(scope=Scope.EVERYBODY), {"headers": {"Idempotency-Key": '"k"'}}

def served(view, **settings):
    return override_settings(ROOT_URLCONF=type("urls", (), {"urlpatterns": [path("pay", view)]}), **settings)

def told(answer):
    return answer.status_code, answer.headers.get("Idempotent-Replayed")

def pay(request):
    Order.objects.create(reference="a", amount=1)
    return HttpResponse(status=201)
"""


def test_an_effect_commits_with_its_record(shop):
    told = shop.run(
        GUARDED
        + """
hooks = []

@guarded
def order(key):
    assert connection.in_atomic_block
    transaction.on_commit(lambda: hooks.append(key))
    with transaction.atomic():
        Order.objects.create(reference=key, amount=1)
    return {"paid": key}

@guarded
def fails(key):
    Order.objects.create(reference=key, amount=1)
    raise KeyError(key)

@guarded
def hides(key):
    Order.objects.create(reference=key, amount=1)
    transaction.set_rollback(True)
    return 1

@guarded
def has_not_begun(key):
    return (Order.objects.create(reference=key, amount=1) for _ in key)

print(json.dumps([order("a"), order("a"), hooks, state("t:a")]))
print(json.dumps([outcome(fails, "b"), state("t:b")]))
print(json.dumps([outcome(hides, "c"), state("t:c")]))
with transaction.atomic():
    print(outcome(order, "d"))
print(state("t:d")[0], outcome(atomic(lambda: 1)), connection.in_atomic_block, connection.get_autocommit())
print(json.dumps([order("e"), order("a"), state("t:e")]))
print(outcome(has_not_begun, "f"), state("t:f"))
"""
    )
    lines = told.splitlines()
    assert lines[0] == '[{"paid": "a"}, {"paid": "a"}, ["a"], ["COMPLETED", 1]]'
    assert lines[1] == '["KeyError", ["RELEASED", 1]]'
    assert lines[2] == '["StoreError", ["RELEASED", 1]]'
    assert lines[3] == "ValueError"
    assert lines[4] == "RELEASED OncewardError False True"
    assert lines[5] == '[{"paid": "e"}, {"paid": "a"}, ["COMPLETED", 2]]'
    assert lines[6] == "NotBegun ('RELEASED', 2)"


def test_the_next_handler_works_after_one_that_closes_its_connection_or_commits_by_itself(shop):
    told = shop.run(
        GUARDED
        + """
@guarded
def closes(key):
    Order.objects.create(reference=key, amount=1)
    connection.close()

@guarded
def order(key):
    Order.objects.create(reference=key, amount=1)

@guarded
def commits(key):
    Order.objects.create(reference=key, amount=1)
    connection.cursor().execute("COMMIT")

print(outcome(closes, "a") is None, state("t:a"), outcome(order, "a"), state("t:a"))
print(outcome(commits, "b"), state("t:b"), outcome(order, "c"), state("t:c"))
"""
    )
    lines = told.splitlines()
    assert lines[0] == "False ('RELEASED', 0) None ('COMPLETED', 1)"
    assert lines[1] == "OncewardError ('PARKED', 2) None ('COMPLETED', 3)"


def test_atomic_on_a_function_without_a_guard_of_its_own_runs_nothing(small):
    told = small.run(
        WEB
        + GUARDED
        + """
@atomic
def helper(key):
    return Order.objects.create(reference=key, amount=1).pk

@once(key="key", name="t")
def order(key):
    return helper(key)

@guarded
def joined(key):
    return key, helper(key)

@idempotent(RULES, name="t")
def view(request):
    return HttpResponse(helper("c"))

with served(view):
    print(outcome(order, "a"), outcome(joined, "b"), outcome(lambda: Client().post("/pay", **KEY)), outcome(helper, "d"))
print([record.status for record, _ in once.ledger.records()], Order.objects.count())
"""
    )
    assert told.splitlines() == [" ".join(["OncewardError"] * 4), "['RELEASED', 'RELEASED', 'RELEASED'] 0"]


@pytest.mark.parametrize("is_middleware", [False, True])
def test_atomic_on_a_view_or_its_method_commits_its_answer(small, is_middleware):
    told = small.run(
        WEB
        + f"""
from django.db import connections, transaction
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

connections.settings["default"]["ATOMIC_REQUESTS"] = True
apart = transaction.non_atomic_requests
guard = (lambda view: view) if {is_middleware} else idempotent(RULES, name="t")

@guard
@apart
@atomic
def plain(request):
    return pay(request)

class Plain(View):
    @atomic
    def post(self, request):
        return pay(request)

@method_decorator([guard, apart], name="dispatch")
class Rest(ViewSet):
    @atomic
    def create(self, request):
        return Response(status=pay(request).status_code)

@guard
@apart
@api_view(["POST"])
@atomic
def api(request):
    return Response(status=pay(request).status_code)

given = {{"DATABASE": "default", "rules": RULES, "name": "site"}}
middleware = ["onceward.web.django.IdempotencyMiddleware"] * {is_middleware}
for number, view in enumerate([plain, guard(apart(Plain.as_view())), Rest.as_view({{"post": "create"}}), api]):
    with served(view, ONCEWARD=given, MIDDLEWARE=middleware):
        key = {{"Idempotency-Key": str(number)}}
        print([told(Client().post("/pay", headers=key)) for _ in "ab"], Order.objects.count() == number + 1)
"""
    )
    assert told.splitlines() == ["[(201, None), (201, 'true')] True"] * 4


@pytest.mark.parametrize("is_middleware", [False, True])
def test_atomic_records_the_answers_that_are_recorded_without_it_and_undoes_the_others(small, is_middleware):
    told = small.run(
        WEB
        + f"""
keys = map("k{{}}".format, range(99))

def answers(of, status, record):
    def view(request):
        current().send("http://127.0.0.1:1", "paid")
        Order.objects.create(reference="a", amount=1)
        return HttpResponse(status=status)

    rules = Rules(scope=Scope.EVERYBODY, **record)
    given = {{"DATABASE": "default", "rules": rules, "name": "t"}}
    guard = (lambda view: view) if {is_middleware} else idempotent(rules, name="t")
    middleware = ["onceward.web.django.IdempotencyMiddleware"] * {is_middleware}
    with served(guard(of(view)), ONCEWARD=given, MIDDLEWARE=middleware):
        key = next(keys)
        sent = [told(Client().post("/pay", headers={{"Idempotency-Key": key}})) for _ in "ab"]
    orders, _ = Order.objects.count(), Order.objects.all().delete()
    record, _ = once.ledger.show(f"t:{{key}}:*")
    return sent, (record.status, record.error, record.attempts, record.unsent is None), orders

for record in ({{}}, {{"record": range(200, 600)}}, {{"record": [201]}}, {{"max_response": 0}}):
    for status in (201, 302, 409, 429, 503):
        plain, joined = (answers(of, status, record) for of in (lambda view: view, atomic))
        assert plain[:2] == joined[:2], (record, status, plain, joined)
        assert joined[2] == (plain[2] == 1), (record, status, joined)
print("alike")
"""
    )
    assert told.startswith("alike\n")


def test_coroutines_are_guarded_and_atomic_refuses_them(small):
    told = small.run(
        WEB
        + """
import asyncio

@once(key="key", name="t")
async def order(key):
    await Order.objects.acreate(reference=key, amount=1)
    return key

async def main():
    print(await order("a"), await order("a"), await Order.objects.acount())

asyncio.run(main())
try:
    atomic(main)
except TypeError as error:
    print(error)
"""
    )
    lines = told.splitlines()
    assert lines[0] == "a a 1"
    assert "is a coroutine function" in lines[1]


@pytest.mark.nightly
def test_an_operation_of_ninja_answers_once(small):
    python = environment("ninja", ["django==5.2.19", "django-ninja==1.7.1"])
    told = small.run(
        WEB
        + """
from ninja import NinjaAPI, Schema
from ninja.decorators import decorate_view

class Payment(Schema):
    amount: int

api = NinjaAPI()

@api.post("", response={201: dict})
@decorate_view(atomic, idempotent(RULES, name="ninja"))
def operation(request, payment: Payment):
    return 201, {"order": Order.objects.create(reference="n", amount=payment.amount).pk}

with override_settings(ROOT_URLCONF=type("urls", (), {"urlpatterns": [path("pay", api.urls)]})):
    for _ in "ab":
        answer = Client().post("/pay", {"amount": 5}, "application/json", **KEY)
        print(told(answer), answer.content)
print(Order.objects.count())
""",
        python=python,
    )
    assert told.splitlines() == ["(201, None) b'{\"order\": 1}'", "(201, 'true') b'{\"order\": 1}'", "1"]


def test_the_test_cases_begin_with_an_empty_ledger(bare):
    told = bare.manage("test", "--noinput", "test_shop")
    assert "Ran 5 tests" in told
    assert "OK" in told

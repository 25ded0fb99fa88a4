"""What is given in the wrong way to the shells of HTTP, to the rules and to handlers is refused there, by its name."""

import asyncio
import functools
import subprocess
import sys

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from onceward import Once, aws
from onceward.aws import Queue, SqsWorker, on_api
from onceward.web import AsgiIdempotency, Request, Route, Scope, WsgiIdempotency
from onceward.web import django as of_django
from onceward.web import fastapi as of_fastapi
from onceward.web import flask as of_flask
from tables import each
from web.asgi import Client
from web.calls import Rules

URL, ORDERS = "sqlite:///x", Queue("https://sqs.eu-west-1.amazonaws.com/123456789012/orders")
DECORATORS = [getattr(aws, name) for name in aws.__all__ if name.startswith("on_") and name != "on_webhook"]
DECORATORS += [of_flask.idempotent, of_django.idempotent]


@each(
    ("give", "example"),
    [
        (lambda once: AsgiIdempotency(None, once), f"AsgiIdempotency(app, once=Once({URL!r}))"),
        (lambda once: WsgiIdempotency(None, once), f"WsgiIdempotency(app, Once({URL!r}))"),
        (of_fastapi.idempotent_route, f"idempotent_route(Once({URL!r}))"),
        (of_fastapi.idempotent, f"Depends(idempotent(Once({URL!r})))"),
        (lambda once: SqsWorker(once, ORDERS, print), f"SqsWorker(Once({URL!r}), 'orders', charge)"),
        *((decorator, f"@{decorator.__name__}(Once({URL!r}))") for decorator in DECORATORS),
    ],
)
def test_a_url_in_place_of_a_once_is_told_with_what_to_give(give, example):
    with pytest.raises(TypeError) as raised:
        give(URL)
    assert str(raised.value) == f"once={URL!r}: give an Once, as in {example}"
    for other in (None, 5, Once):
        with pytest.raises(TypeError, match=r"give an Once, as in .*sqlite:///orders\.db"):
            give(other)


GUARDS = [
    lambda once, **options: AsgiIdempotency(None, once, **options),
    lambda once, **options: WsgiIdempotency(None, once, **options),
    of_fastapi.idempotent_route,
    of_fastapi.idempotent,
    of_flask.idempotent,
    of_django.idempotent,
    on_api,
]


@each("guard", GUARDS)
def test_a_guard_needs_rules_and_a_name_and_waits_seconds(guard, once):
    for rules in (None, Route("/orders"), [Route("/orders")], {}):
        with pytest.raises(TypeError, match=r"^rules=.*: give Rules, as in rules=Rules\(Route\('/orders'\), scope="):
            guard(once, rules=rules)
    for wait in ("5", -1, True) if guard is not on_api else ():
        with pytest.raises((TypeError, ValueError), match=f"^on_busy={wait!r}: give"):
            guard(once, rules=Rules(), name="shop", wait=wait)
    if guard is not on_api:
        with pytest.raises(TypeError, match=r"^name= is missing: give the namespace"):
            guard(once, rules=Rules())
    guard(once.using(name="shop"), rules=Rules())


async def hook(*args):
    return True


@each("option", ["record", "scope"])
@each("given", [hook, functools.partial(hook, 1)])
def test_a_hook_that_nobody_would_await_is_refused(option, given):
    with pytest.raises(TypeError, match=f"^{option}= is a coroutine function, and nobody would await it"):
        Rules(**{option: given})


@each(
    ("make", "says"),
    [
        (lambda once: of_flask.idempotent(once, Rules(Route("/orders")), name="n"), "give it no path"),
        (lambda once: of_django.idempotent(once, Rules(Route("/orders")), name="n"), "give it no path"),
        (lambda once: of_fastapi.idempotent_route(once, Rules(Route("/orders")), name="n"), "the endpoint has one"),
        (lambda once: WsgiIdempotency(None, once, Rules(), name="n", on_busy="skip"), "each request is answered"),
        (lambda once: aws.on_kinesis(once, partial=0), "^partial=0: give True or False"),
        (lambda once: AsgiIdempotency(None, once, Rules(scope=Scope.HOST), name="n"), "ASGI servers authenticate"),
    ],
)
def test_an_option_that_does_not_fit_the_shell_is_refused(once, make, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make(once)


def begun(scope):
    request = Request("POST", "/orders", headers=[("idempotency-key", "k")])
    return Rules(scope=lambda _: scope).begin(request)


@each("scope", [None, "", " ", ("shop", None), {}])
def test_a_scope_with_a_part_missing_is_a_request_of_nobody(scope):
    assert begun(scope).status == 400


@each(("make", "kind"), [(object, "object"), (lambda: True, "bool"), (hook, "coroutine")])
def test_a_scope_of_which_no_key_can_be_made_is_told(make, kind):
    with pytest.raises(TypeError, match=rf"^scope= returned a {kind}"):
        begun(make())


@pytest.mark.slow
@each(("module", "name"), [("fastapi", "fastapi"), ("flask", "flask"), ("django", "django")])
def test_a_framework_that_is_not_installed_is_told_with_what_to_install(module, name):
    code = f"import sys; sys.modules[{name!r}] = None\nimport onceward.web.{module}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    told = f"ImportError: onceward.web.{module} needs {name}, which is not installed: pip install {name}"
    assert ended.stderr.splitlines()[-1] == told


@each("decorator", DECORATORS)
def test_a_decorator_without_its_once_says_so_when_decorating(decorator):
    def pay(payload):
        raise AssertionError("ran")

    with pytest.raises(TypeError, match=r"^once=<function .*pay.*: \(once\) is missing: write @\w+\(once\)$"):
        decorator(pay)


def test_a_lease_that_is_too_short_fails_when_the_middleware_is_made(tmp_path):
    once, server = Once(f"sqlite:///{tmp_path}/ledger.db"), Client()
    app = Starlette(middleware=[Middleware(AsgiIdempotency, once=once, rules=Rules(), name="shop", lease=1e-5)])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^lease=1e-05 is too short for sqlite:"):
            asyncio.run(app({"type": "lifespan"}, server.receive, server.send))
    assert server.sent == []

"""What is given in the wrong way to the shells of HTTP, to the rules and to handlers is refused there, by its name."""

import functools
import subprocess
import sys

import pytest

from onceward import Once, aws
from onceward.aws import Queue, Redrive, SqsWorker, on_api
from onceward.web import AsgiIdempotency, Request, Route, WsgiIdempotency
from onceward.web import django as of_django
from onceward.web import fastapi as of_fastapi
from onceward.web import flask as of_flask
from tables import each
from web.calls import Rules

pytestmark = pytest.mark.sampled(rules=2, wait=1, given=1)

URL = "sqlite:///x"
DECORATORS = [getattr(aws, name) for name in aws.__all__ if name.startswith("on_") and name != "on_webhook"]
DECORATORS += [of_flask.idempotent, of_django.idempotent]


def queue(name):
    return Queue(f"https://sqs.eu-west-1.amazonaws.com/123456789012/{name}")


@each(
    ("give", "example"),
    [
        (lambda once: AsgiIdempotency(None, once), f"AsgiIdempotency(app, once=Once({URL!r}))"),
        (lambda once: WsgiIdempotency(None, once), f"WsgiIdempotency(app, Once({URL!r}))"),
        (of_fastapi.idempotent_route, f"idempotent_route(Once({URL!r}))"),
        (of_fastapi.idempotent, f"Depends(idempotent(Once({URL!r})))"),
        (lambda once: SqsWorker(once, queue("orders"), print), f"SqsWorker(Once({URL!r}), 'orders', charge)"),
        (
            lambda once: Redrive(once, queue("dead"), queue("orders"), name="n"),
            f"Redrive(Once({URL!r}), source, target, name='billing.charge')",
        ),
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


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("rules", [None, Route("/orders"), [Route("/orders")], "/orders", {}, False])
def test_rules_that_are_none_are_refused(guard, rules, once):
    with pytest.raises(TypeError, match=r"^rules=.*: give Rules, as in rules=Rules\(Route\('/orders'\), scope=Scope"):
        guard(once, rules=rules)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("wait", ["5", -1, True, float("nan")])
def test_a_wait_that_is_no_number_of_seconds_is_refused_by_its_own_name(guard, wait, once):
    with pytest.raises((TypeError, ValueError), match=f"^wait={wait!r}: give"):
        guard(once, rules=Rules(), name="shop", wait=wait)


@each("guard", GUARDS[:-1])
def test_a_guard_without_a_name_is_refused(guard, once):
    with pytest.raises(TypeError, match=r"^name= is missing: give the namespace"):
        guard(once, rules=Rules())
    guard(once, rules=Rules(), name="shop")
    guard(once.using(name="shop"), rules=Rules())


async def hook(*args):
    return True


class Hook:
    async def __call__(self, *args):
        return True


@pytest.mark.parametrize("option", ["record", "scope"])
@pytest.mark.parametrize("given", [hook, Hook(), functools.partial(hook, 1)], ids=["function", "object", "partial"])
def test_a_hook_that_nobody_would_await_is_refused(option, given):
    with pytest.raises(TypeError, match=f"^{option}= is a coroutine function, and nobody would await it"):
        Rules(**{option: given})


@each(
    ("make", "says"),
    [
        (lambda: of_flask.idempotent(Once("memory:"), Rules(Route("/orders")), name="n"), "give it no path"),
        (lambda: of_django.idempotent(Once("memory:"), Rules(Route("/orders")), name="n"), "give it no path"),
        (
            lambda: of_fastapi.idempotent_route(Once("memory:"), Rules(Route("/orders")), name="n"),
            "the endpoint has one",
        ),
        (lambda: Route(5), "^path=5: give"),
        (lambda: Route(None), "^path=None: give"),
        (lambda: Route(key=None), "^key=None: give"),
        (lambda: Route(methods=[1]), r"^methods=\[1\]: 1 is not a method"),
        (lambda: Route(methods=5), "^methods=5: give a list"),
        (lambda: Route(methods=["PO ST"]), "^methods=.* 'PO ST' is not a method"),
        (lambda: Route(methods=[""]), "^methods=.* '' is not a method"),
        (lambda: Route(methods=["GET", "head"]), "^methods=.* leave HEAD out"),
        (lambda: Route(required="yes"), "^required='yes': give True or False"),
        (lambda: Rules(length=5), "^length=5: give the least and the most"),
        (lambda: Rules(length=("1", "2")), "^length=.*: give the least and the most"),
        (lambda: Rules(length=(1, 2, 3)), "^length=.*: give the least and the most"),
        (lambda: Rules(record=200), "^record=200: give statuses"),
        (lambda: Rules(record=True), "^record=True: give statuses"),
        (lambda: Rules(record="200"), "^record='200': give statuses"),
        (lambda: Rules(docs=None), "^docs=None: give a URL"),
        (lambda: Rules(strict="no"), "^strict='no': give True or False"),
        (lambda: Rules(scope="X Tenant"), "^scope='X Tenant': say which caller"),
        (lambda: Rules(scope="cookie:"), "^scope='cookie:': say which caller"),
        (lambda: Rules(scope="cookie: session"), "^scope='cookie: session': say which caller"),
        (lambda: aws.on_sqs(Once("memory:"), partial="no"), "^partial='no': give True or False"),
        (lambda: aws.on_kinesis(Once("memory:"), partial=0), "^partial=0: give True or False"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_by_its_name(make, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make()


def test_methods_may_be_any_tokens():
    assert Route(methods={"purge", "M-SEARCH"}).covers("PURGE", "/a")


def begun(scope):
    request = Request("POST", "/orders", headers=[("idempotency-key", "k")])
    return Rules(scope=lambda _: scope).begin(request)


@each("scope", [None, "", " ", ("shop", None), (), {}, float("nan")])
def test_a_scope_with_a_part_missing_is_a_request_of_nobody(scope):
    assert begun(scope).status == 400


@each("scope", [object(), {1, 2}, True, False])
def test_a_scope_of_which_no_key_can_be_made_is_told_with_what_to_return(scope):
    with pytest.raises(TypeError, match=rf"^scope= returned a {type(scope).__name__}, .*: return a str or an int"):
        begun(scope)


def test_a_scope_that_is_to_be_awaited_is_told_so():
    async def user():
        raise AssertionError("ran")

    with pytest.raises(TypeError, match=r"^scope= returned a coroutine"):
        begun(user())


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

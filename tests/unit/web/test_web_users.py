"""Whose key it is, by whom frameworks have verified; in every face."""

from typing import Annotated

import pytest
from django.test import Client, override_settings
from django.urls import path
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException
from fastapi import Request as FastRequest
from fastapi.security import APIKeyHeader, HTTPBearer, OAuth2PasswordBearer
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route as StarletteRoute

from onceward.web import Route, Rules, Scope
from onceward.web import asgi as of_asgi
from onceward.web.fastapi import dependency, idempotent_route
from onceward.web.users import django_user, rest_framework_user, starlette_user
from web import django_site as site
from web.calls import call, post

from rest_framework.authentication import BaseAuthentication  # isort: skip - Django is configured by then
from rest_framework.exceptions import AuthenticationFailed  # isort: skip
from rest_framework.permissions import IsAuthenticated  # isort: skip
from rest_framework.response import Response  # isort: skip
from rest_framework.viewsets import ViewSet  # isort: skip


def keys(once):
    return sorted(record.key for record, _ in once.ledger.records())


def kind(response):
    return response.json()["type"].partition("#")[2] if "problem" in response.headers["content-type"] else None


def as_user(who, **more):
    return post("/pay", "k", **more) | {"headers": {"Idempotency-Key": "k", "Authorization": who}}


class Backend(AuthenticationBackend):
    user = SimpleUser

    async def authenticate(self, conn):
        who = conn.headers.get("authorization")
        return None if who is None else (AuthCredentials(["paying"]), self.user(who))


def starlette(once, scope, *, authenticates=True):
    runs = []

    async def pay(request):
        runs.append(request.user.display_name if authenticates else "?")
        return JSONResponse({"run": len(runs)}, 201)

    app = Starlette(routes=[StarletteRoute("/pay", pay, methods=["POST"])])
    app.add_middleware(of_asgi.AsgiIdempotency, once=once, rules=Rules(scope=scope), name="shop")
    if authenticates:
        app.add_middleware(AuthenticationMiddleware, backend=Backend())
    return app, runs


def test_starlettes_user_is_the_scope_and_nobody_gets_nothing(once):
    app, runs = starlette(once, starlette_user())
    answers = call(app, as_user("ann"), as_user("bob"), as_user("ann"), post("/pay", "k"))
    assert [answer.json().get("run") for answer in answers] == [1, 2, 1, None]
    assert (kind(answers[3]), runs, keys(once)) == ("unscoped", ["ann", "bob"], ["shop:k:ann", "shop:k:bob"])


def test_starlettes_user_that_is_missing_or_has_no_identity_is_refused(once, monkeypatch):
    class User(BaseUser):
        is_authenticated, display_name = True, "Ann"

        def __init__(self, number):
            self.number = number

    with pytest.raises(KeyError, match="user"):
        call(starlette(once, starlette_user(), authenticates=False)[0], as_user("ann"))
    monkeypatch.setattr(Backend, "user", User)
    with pytest.raises(NotImplementedError):
        call(starlette(once, starlette_user())[0], as_user("7"))
    assert keys(once) == []
    call(starlette(once, starlette_user(lambda user: user.number))[0], as_user("7"))
    assert keys(once) == ['shop:k:"7"']


@pytest.fixture(autouse=True)
def _urls():
    with override_settings(MIDDLEWARE=[]):
        yield


class User:
    is_authenticated, is_active = True, True

    def __init__(self, pk):
        self.pk = pk


class Nobody:
    is_authenticated, pk = False, 0


def signing_in(get_response):
    """Do as AuthenticationMiddleware, by a header."""

    def middleware(request):
        who = request.headers.get("X-User")
        request.user = Nobody() if who is None else User(int(who))
        return get_response(request)

    return middleware


def test_djangos_user_is_the_scope_and_nobody_gets_nothing(once):
    order = site.VIEWS["now"] = site.Order()
    given = {"once": once, "name": "shop", "rules": Rules(scope=django_user())}
    with override_settings(MIDDLEWARE=[f"{__name__}.signing_in", site.MIDDLEWARE], ONCEWARD=given):
        runs = [site.post(headers={"X-User": who}).json().get("run") for who in ("7", "8", "7")]
        assert (runs, keys(once)) == ([1, 2, 1], ["shop:k:7", "shop:k:8"])
        assert site.problem(site.post()) == "unscoped"
    assert order.runs == 2


class Tokens(BaseAuthentication):
    """Authenticates by a token; one that begins with x is refused."""

    def authenticate(self, request):
        request.POST
        token = request.headers.get("Authorization")
        if token is not None and token.startswith("x"):
            raise AuthenticationFailed("no such token")
        return None if token is None else (User(int(token)), token)

    def authenticate_header(self, request):
        return "Token"


class Orders(ViewSet):
    authentication_classes = (Tokens,)
    permission_classes = (IsAuthenticated,)
    runs = 0

    def create(self, request, number):
        type(self).runs += 1
        return Response({"run": self.runs, "user": request.user.pk, "data": request.data}, 201)


urlpatterns = [
    path("orders/<int:number>", Orders.as_view({"post": "create"})),
    path("plain/<int:number>", site.dispatch),
]


def test_the_rest_frameworks_user_is_the_scope_and_may_be_refused(once):
    given = {"once": once, "name": "shop", "rules": Rules(scope=rest_framework_user())}
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[site.MIDDLEWARE], ONCEWARD=given):
        runs = [site.post(data=b'{"a":1}', headers={"Authorization": who}).json() for who in ("7", "8", "7")]
        assert runs == [{"run": run, "user": user, "data": {"a": 1}} for run, user in ((1, 7), (2, 8), (1, 7))]
        assert keys(once) == ["shop:k:7", "shop:k:8"]
        refused = site.post(headers={"Authorization": "x7"})
        assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Token")
        assert refused.json() == {"detail": "no such token"}
        assert site.problem(site.post()) == "unscoped"
        form = Client().post("/orders/7", {"a": 1}, headers={"Idempotency-Key": "form", "Authorization": "7"})
        assert form.json()["data"] == {"a": "1"}  # the body is there, although it was read before
        with pytest.raises(RuntimeError, match="is not a view of Django REST framework"):
            Client().post("/plain/7", headers={"Idempotency-Key": "k"})
        assert site.post("/other/7").status_code == 404
    assert Orders.runs == 3


def current_user(authorization: Annotated[str | None, Header()] = None, tenant: str = "none"):
    if authorization == "wrong":
        raise HTTPException(401, "no such token", {"WWW-Authenticate": "Bearer"})
    return authorization and (tenant, authorization)


@pytest.fixture
def payments(once):
    """Return an application whose endpoint is guarded by a scope, and what counts its runs."""

    def made(scope):
        runs = []
        router = APIRouter(route_class=idempotent_route(once, Rules(scope=scope), name="shop"))

        @router.post("/pay")
        async def pay(what: dict, user: Annotated[object, Depends(current_user)]):
            runs.append(user)
            return {"run": len(runs), "what": what}

        app = FastAPI()
        app.include_router(router)
        return app, runs

    return made


def test_who_a_dependency_finds_is_the_scope_and_whom_it_refuses_gets_no_replay(payments, once):
    app, runs = payments(dependency(current_user))
    answers = call(app, *(as_user(who, json={"a": 1}) for who in ("ann", "bob", "ann")))
    assert [answer.json() for answer in answers] == [{"run": run, "what": {"a": 1}} for run in (1, 2, 1)]
    assert keys(once) == ["shop:k:(none,ann)", "shop:k:(none,bob)"]
    refused, nobody = call(app, as_user("wrong", json={}), post("/pay", "k", json={}))
    assert (refused.status_code, refused.json()) == (401, {"detail": "no such token"})
    assert refused.headers["www-authenticate"] == "Bearer"
    assert (kind(nobody), len(runs)) == ("unscoped", 2)


def test_a_middleware_around_lets_in_nobody_whom_a_dependency_refuses(payments, once):
    app, runs = payments(dependency(current_user))
    app.add_middleware(of_asgi.AsgiIdempotency, once=once, rules=Rules(scope=Scope.EVERYBODY), name="all")
    (refused,) = call(app, as_user("wrong", json={}))
    assert (refused.status_code, runs) == (401, [])


async def signer(request: FastRequest):
    return f"signer of {len(await request.body())}"


def test_a_dependency_may_read_the_body(payments, once):
    app, _runs = payments(dependency(signer))
    sent = as_user("ann", json={"a": "x" * 100_000})
    assert [answer.json()["run"] for answer in call(app, sent, sent)] == [1, 1]
    assert keys(once) == ['shop:k:"signer of 100008"']
    (large,) = call(app, as_user("ann", json={"a": "x" * (1 << 20)}))
    assert large.status_code == 413


def test_who_runs_while_the_dependencies_are_open(payments, once):
    opened = []

    async def session():
        opened.append("session")
        yield opened
        opened.clear()

    def loaded(db: Annotated[list, Depends(session)]):
        return db

    async def who(db):
        return "acme" if db else "closed"

    app, _runs = payments(dependency(loaded, who))
    assert [answer.status_code for answer in call(app, as_user("ann", json={}), as_user("ann", json={}))] == [200, 200]
    assert keys(once) == ["shop:k:acme"]
    assert opened == []


def test_a_dependency_in_the_middleware_is_refused_beforehand(once):
    async def app(scope, receive, send):
        raise AssertionError("ran")

    guarded = of_asgi.AsgiIdempotency(app, once, Rules(scope=dependency(current_user)), name="shop")
    with pytest.raises(RuntimeError, match="only in routes of idempotent_route"):
        call(guarded, as_user("ann"))


@pytest.mark.parametrize("scheme", [OAuth2PasswordBearer("token"), APIKeyHeader(name="X-Key"), HTTPBearer()])
def test_a_dependency_that_only_reads_a_credential_is_refused(scheme):
    with pytest.raises(TypeError, match=r"only reads the credential.*scope=Scope\.CREDENTIAL"):
        dependency(scheme)
    assert dependency(scheme, lambda credential: 7) is not None


def test_a_request_without_a_key_reaches_its_endpoint_whole_however_long_it_is(once):
    rules = Rules(Route(required=False), scope=dependency(current_user), max_request=10)
    app = FastAPI()
    app.router.route_class = idempotent_route(once, rules, name="shop")

    @app.post("/pay")
    async def pay(request: FastRequest) -> int:
        return len(await request.body())

    async def parts():
        for _ in range(5):
            yield b"12345678"

    (answer,) = call(app, post("/pay", None, content=parts()))
    assert answer.json() == 40

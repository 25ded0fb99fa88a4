"""Applications for test_web_servers.py: each takes effect, waits for the file GO, and answers. LOG has a line for each effect."""

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated

import django
import flask
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from onceward import Claim, Once, current
from onceward.web import AsgiIdempotency, Rules, Scope, WsgiIdempotency
from onceward.web.fastapi import idempotent_route
from onceward.web.flask import idempotent

once = Once(os.environ["LEDGER"], lease=float(os.environ.get("LEASE", "20")), name="n")
rules = Rules(scope=Scope.EVERYBODY, record_within=1)
go = Path(os.environ["GO"])


def effect(what="effect"):
    with Path(os.environ["LOG"]).open("a") as log:
        log.write(f"{what}\n")


def handle():
    effect()
    while not go.exists():
        time.sleep(0.02)


async def handle_async():
    effect()
    while not go.exists():
        await asyncio.sleep(0.02)


async def slow(request):
    await handle_async()
    return PlainTextResponse("done", 201)


routes = [Route("/slow", slow, methods=["POST"])]
starlette = Starlette(routes=routes, middleware=[Middleware(AsgiIdempotency, once=once, rules=rules)])

router = APIRouter(route_class=idempotent_route(once, rules))


@router.post("/slow", status_code=201)
async def slow_endpoint(claim: Annotated[Claim, Depends(current)]) -> str:
    await handle_async()
    return "done"


fastapi = FastAPI()
fastapi.include_router(router)


flask_app = flask.Flask(__name__)


@flask_app.post("/slow")
@idempotent(once, rules)
def slow_view():
    handle()
    return "done", 201


plain = flask.Flask(__name__)


@plain.post("/slow")
def slow_plain():
    handle()
    return "done", 201


wsgi = WsgiIdempotency(plain, once, rules)


def slow_django(request):
    handle()
    return HttpResponse("done", status=201)


async def slow_django_async(request):
    await handle_async()
    return HttpResponse("done", status=201)


guard = {"MIDDLEWARE": ["onceward.web.django.IdempotencyMiddleware"], "ONCEWARD": {"once": once, "rules": rules}}
settings.configure(SECRET_KEY="nobody's", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, **guard)
django.setup()
urlpatterns = [path("slow", slow_django), path("later", slow_django_async)]
django_wsgi = get_wsgi_application()
django_asgi = get_asgi_application()

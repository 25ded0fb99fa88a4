"""Applications for test_web_starting.py, whose middleware has wrong options; LEASE and the framework come from outside."""

import os

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from onceward import Once
from onceward.web import AsgiIdempotency, Rules, Scope

once = Once(os.environ["LEDGER"])
options = {"once": once, "rules": Rules(scope=Scope.EVERYBODY), "name": "shop", "lease": float(os.environ["LEASE"])}


async def home(request):
    return PlainTextResponse("there")


starlette = Starlette(routes=[Route("/", home, methods=["GET"])])
starlette.add_middleware(AsgiIdempotency, **options)
fastapi = FastAPI()
fastapi.get("/")(lambda: "there")
fastapi.add_middleware(AsgiIdempotency, **options)

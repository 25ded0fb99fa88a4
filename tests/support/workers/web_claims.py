"""An application that tells under which claim a request is handled."""

import asyncio
import os

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Endpoint

from onceward import Once, OncewardError, current
from onceward.web import AsgiIdempotency, Route, Rules, Scope

once = Once(os.environ["LEDGER"], name="n")
guard = {"rules": Rules(Route("/orders"), scope=Scope.EVERYBODY), "lease": float(os.environ.get("LEASE", "60"))}


async def tell(request):
    try:
        key = current().record.key
    except OncewardError:
        key = ""
    return PlainTextResponse(key, background=BackgroundTask(asyncio.sleep, 1))  # under the claim, after the answer


async def body(request):
    await once.run_async("body", request.body)  # the server reads more of it under the claim
    return await tell(request)


routes = [Endpoint(path, tell, methods=["POST"]) for path in ("/orders", "/whose")]
routes.append(Endpoint("/body", body, methods=["POST"]))
app = Starlette(routes=routes, middleware=[Middleware(AsgiIdempotency, once=once, **guard)])

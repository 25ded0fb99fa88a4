"""An application for test_web_arguments.py whose middleware has a wrong lease; LEASE comes from outside."""

import os

from starlette.applications import Starlette

from onceward import Once
from onceward.web import AsgiIdempotency, Rules, Scope

app = Starlette()
app.add_middleware(
    AsgiIdempotency,
    once=Once(os.environ["LEDGER"]),
    rules=Rules(scope=Scope.EVERYBODY),
    name="shop",
    lease=float(os.environ["LEASE"]),
)

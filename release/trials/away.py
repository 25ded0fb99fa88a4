"""A ledger whose server is away: its driver is there, no handler runs, and the error says so. The first argument is the URL."""

import asyncio
import sys

from onceward import Once, StoreError

once = Once(sys.argv[1], name="trial")
ran = []


async def handle() -> None:
    ran.append("async")


try:
    once.run("k", ran.append, "sync")
    sys.exit("a server that is away has answered")
except StoreError as error:
    assert "StoreError" not in str(error), error
try:
    asyncio.run(once.run_async("k", handle))
    sys.exit("a server that is away has answered")
except StoreError as error:
    print(error)
assert ran == []

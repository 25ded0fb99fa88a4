"""Runs the page's job with arq itself: PAGE FOLDER URL. Another worker has its key for the first three seconds."""

import os
import sys

from arq.connections import RedisSettings
from arq.worker import create_worker

from printed.pages import blocks, run

page, folder, url = sys.argv[1:]
os.chdir(folder)
names = {"__name__": "shop"}
exec(blocks(page, "RQ, Huey, SAQ")[0].text, names)
run(page, names, title="arq")
once = names["once"]
once.acquire(46, name="shop.charge", lease=3)
worker = create_worker(names["WorkerSettings"], redis_settings=RedisSettings.from_dsn(url), burst=True)


async def send(ctx):
    await ctx["redis"].enqueue_job("charge_arq", {"id": 46})


worker.on_startup = send
worker.run()
(record, *_) = once.ledger.show("shop.charge:46")
print(record.status, record.attempts)

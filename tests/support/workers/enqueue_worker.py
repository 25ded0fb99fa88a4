"""Queues a job of each task of shop_tasks.py for each key, or is killed before it sends: LEDGER MODE KEY..."""

import json
import os
import signal
import sys

import shop_tasks

from onceward import Once
from onceward.outbox import drain, sender

url, mode, *keys = sys.argv[1:]
TASKS = ("celery_task", "redis_actor", "rabbitmq_actor", "procrastinate_task", "taskiq_task", "rq_job")
once = Once(url, lease=3)
if mode == "killed":
    sender.send_soon = lambda *_: None
print("ready", flush=True)
sys.stdin.readline()
told = [[name, key, once.enqueue(getattr(shop_tasks, name), 7, note=key, key=key)] for key in keys for name in TASKS]
print(json.dumps(told), flush=True)
if mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
assert drain(60) == 0
os._exit(0)  # the clients of the brokers leave connections to the collector, which warns

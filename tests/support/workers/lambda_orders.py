"""The functions of test_e2e_lambda.py. Their effect is a line in the file EFFECTS; an order says what happens before it.

``fails`` and ``hangs`` are how many attempts fail, or never end. Each attempt is a line in TRIES, each delivery one in DELIVERIES.
"""

import asyncio
import os
import time

from onceward import Claim, Once
from onceward.aws import Delivery, on_sqs

once = Once(os.environ["LEDGER"], name="orders")


class Refused(Exception):
    pass


def append(name, *words):
    log = os.open(os.environ[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(log)


def work(order: dict, delivery: Delivery, claim: Claim) -> str:
    line = (order["id"], delivery.id, claim.attempt)
    append("TRIES", *line)
    if claim.attempt <= order.get("fails", 0):
        raise Refused(f"attempt {claim.attempt} at {order['id']} shall fail")
    if claim.attempt <= order.get("hangs", 0):
        time.sleep(600)
    append("EFFECTS", *line)
    return order["id"]


async def work_async(order: dict, delivery: Delivery, claim: Claim) -> str:
    return await asyncio.to_thread(work, order, delivery, claim)


def told(handler):
    def handle(event, context):
        for record in event["Records"]:
            append("DELIVERIES", record["messageId"])
        return handler(event, context)

    return handle


sqs_threads = told(on_sqs(once, key="order.id", concurrency=4)(work))
sqs_async = told(on_sqs(once, key="order.id", concurrency=4)(work_async))

"""The function of test_e2e_lambda.py, whose effects and deliveries are lines of files. An order says how many of its attempts fail or hang."""

import asyncio
import os
import time

from onceward import Claim, Once
from onceward.aws import on_sqs

once = Once(os.environ["LEDGER"], name="orders")


class Refused(Exception):
    pass


def append(name, *words):
    log = os.open(os.environ[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(log)


def work(order: dict, claim: Claim) -> str:
    if claim.attempt <= order["fails"]:
        raise Refused(f"attempt {claim.attempt} at {order['id']} shall fail")
    if claim.attempt <= order["hangs"]:
        time.sleep(600)
    append("EFFECTS", order["id"], claim.attempt)
    return order["id"]


@on_sqs(once, key="order.id", concurrency=4)
async def guarded(order: dict, claim: Claim) -> str:
    return await asyncio.to_thread(work, order, claim)


def handler(event, context):
    for record in event["Records"]:
        append("DELIVERIES", record["messageId"])
    return guarded(event, context)

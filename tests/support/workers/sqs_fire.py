"""A worker of test_sqs_fire.py, which is killed at any moment: ``python sqs_fire.py LEDGER QUEUE EFFECTS``."""

import asyncio
import random
import sys

from onceward import Claim, Once
from onceward.aws.sqs.worker import SqsWorker

LEDGER, QUEUE, EFFECTS = sys.argv[1:]
LEASE, VISIBILITY = 3, 4  # seconds; as short as the ledger's clock allows, so that what was lost comes again soon


async def count_once(order: dict, claim: Claim) -> int:
    """The effect, an order's count, commits with the record; a message that takes effect twice counts two."""
    await asyncio.sleep(random.random() * 0.05)
    count = {
        "TableName": EFFECTS,
        "Key": {"id": {"S": str(order["id"])}},
        "UpdateExpression": "ADD n :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    return await claim.transact_async([{"Update": count}], order["id"])


SqsWorker(
    Once(LEDGER),
    QUEUE,
    count_once,
    key="order.id",
    name="fire",
    lease=LEASE,
    visibility=VISIBILITY,
    backoff=(1.0, 4.0),
    wait=2,
    on_outcome=lambda outcome: print(outcome.status, flush=True),
).run()

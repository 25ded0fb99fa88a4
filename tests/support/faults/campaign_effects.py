"""What the consumers of a campaign do with each message. ``ONCEWARD_CAMPAIGN`` tells the ledger, the journal, and which messages fail until when."""

import asyncio
import json
import os
import random
import time
from pathlib import Path

from onceward import Claim, Once
from stores import ledgers

GIVEN = json.loads(os.environ["ONCEWARD_CAMPAIGN"])
LEASE = 4.0  # seconds, so that what a killed consumer held comes again soon
MAX_ATTEMPTS = 4  # then a poisoned message is parked
STORE = GIVEN["ledger"]
FIXED = Path(GIVEN["fix"])
ledger = ledgers.at(STORE)
ledger.journal = GIVEN["journal"]


class PoisonedError(Exception):
    """The message cannot be handled before the fix."""


def opened() -> Once:
    return Once(STORE, lease=LEASE, max_attempts=MAX_ATTEMPTS)


def handle(order: dict, claim: Claim) -> int:
    """Make the effect of a message, which commits with its record where the ledger can do that."""
    _check(order["id"])
    time.sleep(random.random() * 0.05)
    ledger.spend(claim, str(order["id"]), order["id"])
    return order["id"]


async def handle_async(order: dict, claim: Claim) -> int:
    _check(order["id"])
    await asyncio.sleep(random.random() * 0.05)
    await ledger.spend_async(claim, str(order["id"]), order["id"])
    return order["id"]


def _check(number: int) -> None:
    every = GIVEN["poison"]
    if number % every == every // 2 and not FIXED.exists():
        raise PoisonedError(number)

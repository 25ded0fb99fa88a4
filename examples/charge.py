#!/usr/bin/env python3
"""Charge the customer of a payment webhook.

As a function:  onceward pipe webhooks.ndjson --key event.id --call charge:charge
As a command:   onceward pipe webhooks.ndjson --key line.id -- python3 charge.py

Each charge is one line in charges.log, so that `sort charges.log | uniq -d` shows whether anybody was charged twice.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def charge(event: dict[str, Any]) -> dict[str, Any]:
    """Charge once; onceward sees to the once."""
    payment = event["data"]
    if payment["amount"] <= 0:
        raise ValueError(f"an amount of {payment['amount']} cannot be charged")
    with Path("charges.log").open("a", encoding="utf-8") as log:
        log.write(f"{event['id']} {event['type']} {payment['amount']} {payment['currency']}\n")
    return {"event": event["id"], "order": payment["order"], "status": "charged"}


if __name__ == "__main__":
    receipt = charge(json.load(sys.stdin))
    # The same on every attempt: what a payment service wants as its Idempotency-Key.
    receipt["idempotency_key"] = os.environ.get("ONCEWARD_DERIVED_KEY")
    print(json.dumps(receipt))

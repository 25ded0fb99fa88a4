"""Charges the orders of a Kinesis stream. The card of order 3 is unknown until FIXED is set."""

import os

from onceward import Claim, Once
from onceward.aws import on_kinesis

once = Once("sqlite:///orders.db", lease=5)


@on_kinesis(once, key="order.id", name="shop.charge", max_attempts=5)
def charge(order: dict, claim: Claim) -> None:
    """Charge an order."""
    print("charging order", order["id"], "in attempt", claim.attempt)
    if order["id"] == 3 and "FIXED" not in os.environ:
        raise ValueError("no such card")

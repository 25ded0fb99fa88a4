"""Charges an order. With DIE set, its process dies after that."""

import os

from onceward import Claim, Once

once = Once("sqlite:///orders.db", lease=5)  # at most the queue's visibility timeout


@once(key="order.id", name="shop.charge")
def charge(order: dict, claim: Claim) -> None:
    """Charge an order."""
    print("charging order", order["id"], "with", claim.key("charge"))  # call your bank here, with this key
    if "DIE" in os.environ:
        os._exit(1)  # as if the machine lost its power after the charge

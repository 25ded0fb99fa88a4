"""One delivery of a message whose effect is made in one of the ways of docs/explanation/guarantees.md; its process may die."""

import os
import sqlite3
import sys
from contextlib import closing

from onceward import Claim, Completed, Once

DIES_BEFORE, DIES_AFTER = 0, 1
TABLE = "CREATE TABLE IF NOT EXISTS effects (idempotency TEXT UNIQUE, fence INTEGER)"


def effect(bank, way, claim):
    """Make the effect in the downstream, as one that takes keys, that checks fences, or that does neither."""
    key = claim.key("pay") if "claim.key" in way else None
    if "claim.fence" in way:
        bank.execute(
            "INSERT INTO effects SELECT NULL, :fence WHERE NOT EXISTS (SELECT 1 FROM effects WHERE fence > :fence)",
            {"fence": claim.fence},
        )
    else:
        bank.execute("INSERT INTO effects VALUES (?, NULL) ON CONFLICT DO NOTHING", (key,))


def deliver(folder, way, *, dies=None, retention=3600):
    """Deliver the message once in this process, which may die. Return whether it was a replay."""
    options = {"on_lapse": "park" if "park" in way else "retry", "retention": retention, "on_busy": 60}
    options["lease"] = min(60, retention) if dies is None else 1
    once = Once(f"sqlite:///{folder}/ledger.db", name="shop", **options)
    own = "transaction" in way
    bank = sqlite3.connect(f"{folder}/{'ledger' if own else 'bank'}.db", isolation_level=None, timeout=60)
    bank.execute(TABLE)

    def handle(claim: Claim) -> None:
        if dies == DIES_BEFORE:
            os._exit(9)
        effect(bank, way, claim)
        if dies == DIES_AFTER:
            os._exit(9)

    try:
        if not own:
            return once.run_outcome("order-42", handle).replayed
        with once.transaction("order-42", bank) as transaction:
            handle(transaction)
    except Completed:
        return True
    finally:
        once.close()
        bank.close()
    return False


def count(folder, way):
    with closing(sqlite3.connect(f"{folder}/{'ledger' if 'transaction' in way else 'bank'}.db")) as bank:
        return bank.execute("SELECT count(*) FROM effects").fetchone()[0]


if __name__ == "__main__":
    deliver(sys.argv[1], sys.argv[2], dies=int(sys.argv[3]))

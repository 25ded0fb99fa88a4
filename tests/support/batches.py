"""Small batches for tests, and what became of them."""

import asyncio

PATIENCE = 10  # seconds after which something hangs


def orders(*names):
    return [{"id": name} for name in names]


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


def standing(once, key):
    return once.ledger.show(f"b:{key}")[0]


def batch_of(once, function, **options):
    return once.batch(function, **{"key": "order.id", "name": "b", **options})


def within_patience(work):
    """Run a coroutine in a new event loop; it fails when it hangs."""

    async def main():
        return await asyncio.wait_for(work, PATIENCE)

    return asyncio.run(main())

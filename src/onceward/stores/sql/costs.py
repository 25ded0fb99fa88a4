"""Round trips, commits and storage of a workload on a store of rows (:data:`onceward.stores.capabilities.COSTS`)."""

from math import ceil
from typing import Final

from onceward.stores.contract import Store
from onceward.stores.costs import Way, Workload

_ROW: Final = (
    250  # bytes of a row and its index entries, without key and result (benchmarks/postgres_large.py: 396 in all)
)
_STEP: Final = 110  # bytes of a step in its record, without its result


def costs(_: Store, load: Workload) -> list[Way]:
    """Return what each way of using the ledger asks for, a day. A duplicate reads, and commits nothing.

    A key is in the row and in its index. Commits of several rows at once are one.
    """
    first, again = load.firsts, load.again
    kept = first * load.retention / 86400
    row = _ROW + 2 * load.key + load.result
    base = Way("onceward", 2 * first + again, commits=2 * first, stored=kept * row)
    ways = [
        base,
        base._replace(name="onceward, cache", requests=2 * first + again * (1 - load.remembered)),
        # Claim, effect and completion commit once, and that commit is your effect's own.
        base._replace(name="onceward, transaction", commits=0),
    ]
    if load.steps:
        ways.append(
            base._replace(
                name=f"onceward, {load.steps} steps",
                requests=base.requests + load.steps * first,
                commits=(2 + load.steps) * first,
                stored=kept * (row + load.steps * (_STEP + load.result)),
            )
        )
    if load.batch > 1:
        batches = ceil(load.messages / load.batch)
        ways.append(base._replace(name=f"onceward, batches of {load.batch}", requests=2 * batches, commits=2 * batches))
    return ways

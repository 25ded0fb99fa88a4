"""Round trips, entries of the append-only file and memory of a workload on Redis (:data:`onceward.stores.capabilities.COSTS`)."""

from math import ceil
from typing import Final

from onceward.stores.contract import Store
from onceward.stores.costs import Way, Workload

# Bytes, from benchmarks/stores_redis.py memory.
_RECORD: Final = 550  # a record and its index entries, without key and result
_TABLE: Final = 750  # more of a hash that has a field above _SHORT
_SHORT: Final = 64  # Redis's hash-max-listpack-value
_KEYS: Final = 4  # how often a key is kept: in its record, and in the indexes
_STEP: Final = 110  # a step in its record, without its result


def costs(_: Store, load: Workload) -> list[Way]:
    """Return what each way of using the ledger asks for, a day. A duplicate reads. A commit is a write of the append-only file."""
    first, again = load.firsts, load.again
    kept = first * load.retention / 86400
    base = Way("onceward", 2 * first + again, commits=2 * first, stored=kept * _bytes(load, 0))
    ways = [base, base._replace(name="onceward, cache", requests=2 * first + again * (1 - load.remembered))]
    if load.steps:
        ways.append(
            base._replace(
                name=f"onceward, {load.steps} steps",
                requests=base.requests + load.steps * first,
                commits=(2 + load.steps) * first,
                stored=kept * _bytes(load, load.steps * (_STEP + load.result)),
            )
        )
    if load.batch > 1:
        batches = ceil(load.messages / load.batch)
        ways.append(base._replace(name=f"onceward, batches of {load.batch}", requests=2 * batches, commits=2 * batches))
    return ways


def _bytes(load: Workload, steps: int) -> int:
    is_long = max(load.result, load.key, steps) > _SHORT
    return _RECORD + _KEYS * load.key + load.result + steps + is_long * _TABLE

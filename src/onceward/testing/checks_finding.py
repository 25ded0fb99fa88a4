"""The checks of finding records by status and age, and those of a chain."""

from onceward.core.comparisons import meets
from onceward.core.origin import PARENT, ROOT, provenance_in, read_origin
from onceward.core.protocol import STATES
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.core.selections import ByKey, ChainOf
from onceward.core.views import Criteria
from onceward.testing.bench import Bench, check, expect, found, pages

_STATES = ((), *((state,) for state in STATES), (PARKED, "LAPSED"), (RELEASED, COMPLETED))
# The records are 10, 110 and 210 seconds old.
_CRITERIA = [
    *(Criteria(states) for states in _STATES),
    *(Criteria(states, older_than=50.0) for states in _STATES),
    *(Criteria(states, newer_than=150.0) for states in _STATES),
    Criteria((), 50.0, 150.0),
    Criteria((), 250.0),
]
_ROOTS = ("shop:1", "shop:12", "shop", 'a"b', "a'b", "a\\", "é", 'x","parent":"y')


@check
def find_by_status_and_age(bench: Bench) -> None:
    """A listing by status and age has the same records as one of all, sorted out here, each once, in pages of any size."""
    for age in (200, 100, 0):
        for prefix in ("a", "b"):
            for status in (COMPLETED, RELEASED, PARKED):
                held = bench.claimed(f"{prefix}:{status} {age}", "a")
                bench.swapped(held, status=status, lease=0.0, keep=None if status == PARKED else 600.0 if age else 5.0)
            bench.claimed(f"{prefix}:lapsed {age}", "a", lease=30.0)
            bench.claimed(f"{prefix}:live {age}", "a", lease=1000.0)
            bench.swapped(bench.claimed(f"{prefix}:renewed {age}", "a"), status=IN_PROGRESS, lease=30.0)
        bench.advance(100.0 if age else 10.0)  # nothing is written after the first record expires: a write can purge it
    page = bench.do(bench.store.select(ByKey(), None, 100))
    # A store can delete a completed record as soon as it expires.
    gone = {f"{prefix}:{COMPLETED} 0" for prefix in ("a", "b")} - {one.key for one in page.records}
    expect(len(page.records) == 36 - len(gone), "a listing finds all")
    for criteria in _CRITERIA:
        for prefix, limit in (("", 100), ("a:", 5)):
            wanted = sorted(
                one.key for one in page.records if one.key.startswith(prefix) and meets(one, criteria.clause, page.now)
            )
            parts = list(pages(bench, ByKey(prefix, criteria), limit))
            expect(all(part.now >= page.now for part in parts), "a page of records found carries the store's time")
            expect(
                sorted(record.key for part in parts for record in part.records) == wanted,
                f"a listing has the records that {criteria} mean, each once, in pages of {limit}",
            )


@check
def select_a_chain(bench: Bench) -> None:
    """A store finds all records of a chain: those whose origin has that root, each once, in pages of any size."""
    for number, root in enumerate(_ROOTS):
        for child in range(number + 1):
            headers = {ROOT: root, PARENT: f"{root} {child}"}
            bench.claimed(f"key {number} {child}", "a", origin=provenance_in(headers.get).origin)
        bench.claimed(root, "a")
    for number, root in enumerate(_ROOTS):
        for limit in (100, 2):
            of_root: list[str] = []
            for record in found(bench, ChainOf(root, scan=True), limit):
                came = read_origin(record.origin)
                of_root += [record.key] if came is not None and came.root == root else []
                expect(bench.load(record.key) == record, "a record found is as it is in the ledger")
            wanted = [f"key {number} {child}" for child in range(number + 1)]
            expect(
                sorted(of_root) == wanted,
                f"a store finds the records of the chain of {root!r}, each once, in pages of {limit}",
            )

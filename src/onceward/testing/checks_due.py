"""The checks of finding records, and messages that are due, for stores that have this capability."""

from onceward.core.comparisons import meets
from onceward.core.origin import PARENT, ROOT, provenance_in, read_origin
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record
from onceward.core.selections import ByKey, ChainOf, DueWithin
from onceward.core.views import STATES, Criteria
from onceward.errors import StoreError
from onceward.stores.capabilities import OUTBOX
from onceward.stores.contract import NoIndex
from onceward.testing.bench import Bench, NotConforming, check, expect, pages, purge_all, records_of

_STATES = ((), *((state,) for state in STATES), (PARKED, "LAPSED"), (RELEASED, COMPLETED))
# The records are 10, 110 and 210 seconds old.
_CRITERIA = [Criteria(states, old, new) for states in _STATES for old in (None, 50.0, 250.0) for new in (None, 150.0)]
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
    expired = {f"{prefix}:{COMPLETED} 0" for prefix in ("a", "b")} - {one.key for one in page.records}
    expect(len(page.records) == 36 - len(expired), "a listing finds all")
    for criteria in _CRITERIA:
        for prefix, limit in (("", 100), ("a:", 5)):
            expected = sorted(
                one.key for one in page.records if one.key.startswith(prefix) and meets(one, criteria.clause, page.now)
            )
            parts = list(pages(bench, ByKey(prefix, criteria), limit))
            expect(all(part.now >= page.now for part in parts), "a page of records found carries the store's time")
            expect(
                sorted(record.key for part in parts for record in part.records) == expected,
                f"a listing has the records that {criteria} mean, each once, in pages of {limit}",
            )


@check
def select_a_chain(bench: Bench) -> None:
    """A store with an index of chains finds all records whose origin has that root, each once, in pages of any size."""
    try:
        list(records_of(bench, ChainOf("none"), 1))
    except NoIndex:
        return
    for number, root in enumerate(_ROOTS):
        for child in range(number + 1):
            headers = {ROOT: root, PARENT: f"{root} {child}"}
            bench.claimed(f"key {number} {child}", "a", origin=provenance_in(headers.get).origin)
        bench.claimed(root, "a")
    for number, root in enumerate(_ROOTS):
        for limit in (100, 2):
            records = records_of(bench, ChainOf(root), limit)
            expect(all(bench.load(one.key) == one for one in records), "a record found is as it is in the ledger")
            of_root = sorted(one.key for one in records if (came := read_origin(one.origin)) and came.root == root)
            expect(
                of_root == [f"key {number} {child}" for child in range(number + 1)],
                f"a store finds the records of the chain of {root!r}, each once, in pages of {limit}",
            )


_CENTURIES = 1e10  # seconds: messages that a person must look at


def _sends(bench: Bench) -> bool:
    """Return whether the ledger can have messages."""
    ready = OUTBOX.of(bench.store)
    if ready is None:
        return False
    try:
        bench.do(ready())
    except StoreError:  # its message says what it lacks
        return False
    return True


def _completed(bench: Bench, key: str, due: float | None) -> Record:
    return bench.swapped(
        bench.claimed(key, "a"),
        status=COMPLETED,
        result="1",
        lease=0.0,
        keep=None if due is not None else 600.0,
        unsent=None if due is None else f'"{key}"',
        due=due,
    )


def _due(bench: Bench, ahead: float = 0.0) -> tuple[list[str], float]:
    """Return the keys of what is due, and the wait for what is due later; 0 if there is none."""
    page = bench.do(bench.store.select(DueWithin(ahead), None, 100))
    expect(page.next is None, "what fits into a page has no next one")
    expect(all(bench.load(one.key) == one for one in page.records), "a record found is as it is in the ledger")
    expect(all(page.now + ahead >= (one.due_at or 0.0) for one in page.records), "a page carries the store's time")
    return [record.key for record in page.records], page.wait or 0.0


def _settled(bench: Bench, keys: list[str]) -> float:
    """Check what is due, the longest due first, and return the wait for the others. An index may be late, so ask again."""
    for _ in range(50):
        due, wait = _due(bench)
        if due == keys:
            return wait
        bench.advance(0.1)
    raise NotConforming(f"the records whose messages are due come, the longest due first: {keys}, not {due}")


@check
def due_finds_what_is_over(bench: Bench) -> None:
    """A store that can find due messages finds records whose ``due_at`` is over by its own clock, the longest due first.

    What is struck out, or what somebody sends, is not found any more.
    """
    if not _sends(bench):
        return
    dues = (30.0, 10.0, 300.0, _CENTURIES, None, 20.0)
    records = [_completed(bench, f"key {number}", due) for number, due in enumerate(dues)]
    slack = 2 * bench.store.resolution
    keys, wait = _due(bench)
    expect(not keys, "messages that are not due yet are not found")
    expect(0 < wait <= 10.5 + slack, "a page tells how long until the next messages are due")
    keys, wait = _due(bench, ahead=60.0)
    expect(keys == ["key 1", "key 5", "key 0"], "messages that will be due within the seconds asked for come, too")
    expect(not wait or wait > 60, "the wait is for messages that are due later than that")
    bench.advance(40.0)
    wait = _settled(bench, ["key 1", "key 5", "key 0"])
    expect(240 < wait < 265, "a page tells how long until messages that are not due are")
    bench.swapped(records[1], status=COMPLETED, result="1", lease=0.0, unsent=None, due=None)
    bench.swapped(records[5], status=COMPLETED, result="1", lease=0.0, keep=None, unsent=records[5].unsent, due=30.0)
    _settled(bench, ["key 0"])
    bench.do(bench.store.delete(records[0]))
    expect(0 < _settled(bench, []) <= 30.5 + slack, "a lease on sending is waited for")


@check
def due_in_pages(bench: Bench) -> None:
    """Due messages come in pages of any size, each record once, also if many are due at the same moment."""
    if not _sends(bench):
        return
    keys = [f"key {number:02}" for number in range(23)]
    for key in keys:
        _completed(bench, key, 1.0)
    bench.advance(5.0)
    for _ in range(50):
        if len(_due(bench)[0]) == len(keys):
            break
        bench.advance(0.1)  # an index may be late
    for limit in (1, 7, 23):
        due = sorted(record.key for record in records_of(bench, DueWithin(0.0), limit))
        expect(due == keys, f"each record comes once, in pages of {limit}")


@check
def unsent_stays(bench: Bench) -> None:
    """A record with unsent messages is not purged, and is found as UNSENT, or as REFUSED if it waits for a person."""
    if not _sends(bench):
        return
    for key, due in (("unsent", 1.0), ("later", 600.0), ("refused", _CENTURIES), ("none", None)):
        _completed(bench, key, due)
    bench.advance(1000.0)
    purge_all(bench, 100)
    for states, keys in (
        ((), ["later", "refused", "unsent"]),
        (("UNSENT",), ["later", "unsent"]),
        (("REFUSED",), ["refused"]),
    ):
        listed = sorted(record.key for record in records_of(bench, ByKey(criteria=Criteria(states))))
        expect(
            listed == keys,
            f"records with messages are not purged, and those that are {states or 'any'} are listed: {listed}",
        )

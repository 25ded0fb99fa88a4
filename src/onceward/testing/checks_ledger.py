"""The checks of what people use: select, delete, purge and close."""

import time

from onceward.core.record import COMPLETED, IN_PROGRESS
from onceward.core.selections import ByKey
from onceward.core.writes import WAITS
from onceward.stores.capabilities import SURVEY
from onceward.stores.contract import Purged
from onceward.testing.bench import Bench, check, claim_of, expect, next_of, purge_all, records_of


@check
def list_finds_all(bench: Bench) -> None:
    """A listing finds every record once, whatever the size of a page; in an empty ledger, none, also as the first request."""
    expect(not _count(bench), "an empty ledger has no records")
    page = bench.do(bench.store.select(ByKey(), None, 10))
    expect((page.records, page.next) == ([], None), "a listing of an empty ledger is one empty page")
    claims = [bench.claimed(f"key {i:02}", "a") for i in range(23)]
    for limit in (1, 7, 23, 100):
        listed = sorted(records_of(bench, ByKey(), limit))
        expect(listed == claims, f"a listing in pages of {limit} finds every record once, as it is")


@check
def list_by_prefix(bench: Bench) -> None:
    """A listing finds the keys that start with the prefix, and no others. No character is a wildcard."""
    for key in ("a", "a:1", "a:2", "ab", "b:1", "A:1", "a%", "a%x", "a_", "\u00e4:1", "\u00e4:\U0001f511"):
        bench.claimed(key, "a")
    for prefix in ("a:", "a", "b", "a%", "a_", "\u00e4:", "a:1", "zzz"):
        keys = sorted(r.key for r in records_of(bench, ByKey(prefix), 2))
        expected = sorted(r.key for r in records_of(bench, ByKey()) if r.key.startswith(prefix))
        expect(keys == expected, f"a listing for {prefix!r} finds the keys that start with it, and no others")


@check
def list_resumes(bench: Bench) -> None:
    """A listing goes on where it stopped, even if records were added, changed or deleted meanwhile."""
    records = [bench.claimed(f"key {i:02}", "a") for i in range(12)]
    page = bench.do(bench.store.select(ByKey("key"), None, 5))
    first = {r.key for r in page.records}
    changed, deleted, *others = [r for r in records if r.key not in first]
    bench.swapped(changed)
    for gone in (deleted, page.records[-1]):
        bench.do(bench.store.delete(gone))
    bench.claimed("key zz", "b")
    resumed: list[str] = []
    while page.next is not None:
        page = bench.do(bench.store.select(ByKey("key"), page.next, 5))
        resumed += [r.key for r in page.records]
    seen = set(resumed)
    expect(len(seen) == len(resumed) and not first & seen, "a resumed listing returns no record twice")
    expect(
        seen >= {r.key for r in (changed, *others)}, "a resumed listing misses no record that was there all the time"
    )


@check
def purge_deletes_the_expired(bench: Bench) -> None:
    """Purge deletes only expired records, up to its limit, and returns how many. It leaves nothing of them."""
    expect(bench.do(bench.store.purge(10)) == Purged(0, None), "a purge of an empty ledger deletes nothing")
    for i in range(5):
        bench.claimed(f"old {i}", "a", lease=0.5, keep=0.5)
    waited = bench.claimed("waited", "a", lease=0.5, keep=WAITS)  # for a person
    bench.swapped(waited, status=COMPLETED, lease=0.5, keep=0.5)
    lasting = [
        bench.claimed("lapsed", "a", lease=0.5, keep=600.0),
        bench.claimed("live", "a", lease=600.0, keep=0.0),
        bench.claimed("for ever", "a", lease=0.5, keep=None),
    ]
    expect(bench.do(bench.store.purge(100)) == Purged(0, None), "nothing is purged before it expires")
    bench.advance(2.0)
    before = {r.key for r in records_of(bench, ByKey())}
    expect(before >= {r.key for r in lasting}, "records that have not expired stay")
    purge_all(bench, 2)
    rest = {r.key: r for r in records_of(bench, ByKey())}
    expect(rest == {r.key: r for r in lasting}, "a purge deletes the expired records and no others")
    expect(_count(bench) in {None, 3}, "a purged key does not count")
    expect(bench.insert(claim_of("waited", "b")).won, "a purged key can be inserted again")


def _count(bench: Bench) -> int | None:
    """Return how many records the store counts; None if it does not."""
    survey = SURVEY.of(bench.store)
    return None if survey is None else bench.do(survey()).total


@check
def close_is_not_the_end(bench: Bench) -> None:
    """A closed store opens again when it is used."""
    held = bench.claimed()
    bench.store.close()
    bench.store.close()
    read = bench.do(bench.store.load("key")).record
    expect(read == held, "a closed store opens again, with the records that it had")
    expect(bench.swap(next_of(held, status=IN_PROGRESS), held).won, "a closed store writes again")


@check
def waiting_ends(bench: Bench) -> None:
    """Who waits for a key looks again in time: ``changed`` ends, also when nobody changes the record."""
    bench.claimed("key", "a")
    for key in ("key", "key", "absent"):
        began = time.monotonic()
        bench.do(bench.store.changed(key, 0.01, 0.1))
        expect(time.monotonic() - began < 10, "changed ends when its time is over")

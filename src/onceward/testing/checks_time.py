"""The checks of the store's clock: the times of a reply, leases, expiry and fences."""

from collections.abc import Callable

from onceward.core.record import Reply
from onceward.core.selections import ByKey
from onceward.core.writes import WAITS
from onceward.stores.contract import Page
from onceward.testing.bench import Bench, check, claim_of, expect, next_of, won


@check
def times_are_the_stores(bench: Bench) -> None:
    """The store stamps the times of a write with its own clock, and replies with its time. A swap keeps the created_at that it is given."""
    slack = bench.store.resolution + 5.0 * (bench.clock is None)
    for keep in (100.0, WAITS + 100.0, None):
        key = f"kept {keep}"
        reply = bench.insert(claim_of(key, "a", lease=30.0, keep=keep))
        first = record = won(reply, "insert")
        expect(abs(record.created_at - reply.now) <= slack, "created_at is the store's time")
        for _ in range(2):
            if bench.clock is not None:
                expect(abs(reply.now - bench.clock()) <= slack, "a reply's time is the store's clock's")
            expect(record.created_at == first.created_at, "created_at is kept by a swap that gives it")
            expect(abs((record.updated_at or 0) - reply.now) <= slack, "updated_at is the store's time")
            expect(
                abs(record.lease_until - reply.now - 30.0) <= slack, "lease_until is the store's time plus the lease"
            )
            late = (record.expires_at or 0) - record.lease_until - (keep or 0)
            expect(
                record.expires_at is keep is None or -1e-3 < late < 1e-3 + bench.store.resolution,
                "expires_at is lease_until plus keep, or never",
            )
            bench.advance(1.0)
            reply = bench.swap(next_of(record, lease=30.0, keep=keep), record)
            record = won(reply, "swap")
    expect(bench.load(key) == record, "the stamps that were returned are those that are read")


@check
def every_reply_has_the_time(bench: Bench) -> None:
    """Every reply and page carries the store's time, and time passes between them."""
    held = bench.claimed()
    verbs: dict[str, Callable[[], Reply | Page]] = {
        "insert": lambda: bench.insert(claim_of("key", "b")),
        "swap": lambda: bench.swap(next_of(held._replace(owner="b")), held._replace(owner="b")),
        "load": lambda: bench.do(bench.store.load("key")),
        "select": lambda: bench.do(bench.store.select(ByKey(), None, 10)),
        "delete": lambda: bench.do(bench.store.delete(held._replace(owner="b"))),
    }
    for name, verb in verbs.items():
        before = verb().now
        bench.advance(2.0)
        passed = verb().now - before
        expect(passed >= 2.0 - 2 * bench.store.resolution, f"the reply of {name} carries the store's time")


@check
def leases_are_not_lowered(bench: Bench) -> None:
    """A write's lease ends after its seconds, or at its ``until`` when that is later; its expiry follows."""
    first = bench.claimed("key", "a", lease=60.0, keep=600.0)
    record = bench.swapped(first, lease=1.0, keep=600.0, until=first.lease_until)
    expect(record.lease_until == first.lease_until, "a renewal does not lower the lease")
    expect(record.expires_at is not None and record.expires_at >= record.lease_until + 600, "it expires after that")
    record = bench.swapped(record, lease=90.0, keep=600.0, until=record.lease_until)
    expect(record.lease_until > first.lease_until, "a longer renewal raises it")
    expect(bench.load("key") == record, "the lease that was returned is the one that is read")


@check
def fences_are_stamped(bench: Bench) -> None:
    """A fence of 0 is stamped with the store's time in microseconds, larger after a purge; a takeover's is at least the given one."""
    first = bench.claimed("key", "a", lease=1.0, keep=0.0)
    expect(abs(first.fence - first.created_at * 1e6) < 2e6, "a fence of 0 is stamped with the time in microseconds")
    after = bench.swapped(first, fence=first.fence + 1, owner="b", lease=0.5, keep=0.0)
    expect(after.fence > first.fence, "the fence of a takeover is the given one, or larger")
    bench.advance(2.0)
    bench.do(bench.store.purge(100))
    again = bench.claimed("key", "c")
    expect(again.fence > after.fence, "the fence after a purge is larger than every one before it")
    big = bench.claimed("big", "a", fence=2**53 - 1)
    expect(big.fence == 2**53 - 1 and bench.load("big") == big, "a fence of 53 bits is kept exactly")

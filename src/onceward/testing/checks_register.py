"""The checks of the register: insert, swap, load, their batches, the store's clock, and races."""

from collections.abc import Callable, Sequence
from functools import partial

from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED, Record, Reply, Write
from onceward.core.register import Answered
from onceward.errors import StoreError
from onceward.stores.contract import Store
from onceward.testing.bench import Bench, check, claim_of, expect, next_of

TEXTS = (
    "",
    "plain",
    "\u00e4\u6f22\U0001f512 \u202e",
    "two\nlines\t\"quoted\" 'twice' \\ %s {}",
    "null",
    "0",
    "x" * 200_000,
)
KEYS = (
    "k",
    " lead and trail ",
    "a/b:c#d?e=f&g",
    "per%cent_under",
    "'quote\"; DROP TABLE onceward; --",
    "\u00e9 e\u0301",
    "\U0001f511",
    "UPPER",
    "upper",
    "line\nbreak",
    "k" * 500,
)


@check
def insert_writes_when_absent(bench: Bench) -> None:
    """Insert writes when the key is absent, and returns the record that it made."""
    reply = bench.insert(claim_of("key", "a"))
    expect(reply.won, "an insert of an absent key is won")
    expect(reply.record is not None and reply.record.owner == "a", "a won insert returns the record that it made")
    expect(bench.load("key") == reply.record, "what a won insert returned is what is read afterwards")


@check
def insert_loses_to_what_is_held(bench: Bench) -> None:
    """Insert of a key that is held changes nothing and returns the record held."""
    held = bench.claimed("key", "a", fingerprint="f")
    reply = bench.insert(claim_of("key", "b"))
    expect(not reply.won, "an insert of a key that is held is lost")
    expect(reply.record == held, "a lost insert returns the record held")
    expect(bench.load("key") == held, "a lost insert changes nothing")


@check
def insert_does_not_judge(bench: Bench) -> None:
    """Insert loses to a record in any status, lapsed and expired ones too, for the store decides nothing."""
    for number, status in enumerate((COMPLETED, RELEASED, IN_PROGRESS)):
        held = bench.claimed(f"key {number}", "a", status=status, lease=1.0, keep=30.0)
        bench.advance(2.0)
        reply = bench.insert(claim_of(f"key {number}", "b"))
        expect((reply.won, reply.record) == (False, held), f"an insert loses to a record that is {status}")


@check
def swap_writes_what_was_seen(bench: Bench) -> None:
    """Swap writes when the record held has the owner, the fence and the beat of the one seen."""
    held = bench.claimed()
    reply = bench.swap(next_of(held, status=COMPLETED, result="1"), held)
    expect(reply.won and reply.record is not None, "a swap of the record seen is won")
    expect(bench.load("key") == reply.record, "what a won swap returned is what is read afterwards")
    expect(reply.record is not None and reply.record.result == "1", "a swap writes every field")


@check
def swap_looks_at_the_version_only(bench: Bench) -> None:
    """Swap depends on owner, fence and beat only, not on other fields of the one seen."""
    held = bench.claimed()
    reply = bench.swap(
        next_of(held, result="1"), held._replace(lease_until=0.0, attempts=9, result="?", status=RELEASED)
    )
    expect(reply.won, "a swap is conditioned on owner, fence and beat only")


@check
def swap_refuses_another_owner(bench: Bench) -> None:
    """Swap by another owner is refused and returns the record held."""
    held = bench.claimed("key", "a")
    stranger = held._replace(owner="b")
    reply = bench.swap(next_of(stranger, status=COMPLETED), stranger)
    expect((reply.won, reply.record) == (False, held), "a swap with another owner is refused and returns what is held")
    expect(bench.load("key") == held, "a refused swap changes nothing")


@check
def swap_refuses_another_fence(bench: Bench) -> None:
    """Swap of an earlier claim of the same owner, with the same beat, is refused."""
    held = bench.claimed()
    earlier = held._replace(fence=held.fence - 1)
    reply = bench.swap(next_of(earlier, status=COMPLETED), earlier)
    expect((reply.won, reply.record) == (False, held), "a swap with another fence is refused and returns what is held")
    expect(bench.load("key") == held, "a refused swap changes nothing")


@check
def swap_refuses_another_beat(bench: Bench) -> None:
    """Swap of an earlier beat is refused."""
    first = bench.claimed()
    second = bench.swap(next_of(first), first).record
    reply = bench.swap(next_of(first, status=COMPLETED), first)
    expect((reply.won, reply.record) == (False, second), "a swap of an earlier beat is refused")
    expect(bench.load("key") == second, "a refused swap changes nothing")


@check
def zombie_is_refused(bench: Bench) -> None:
    """A zombie's write after a takeover is refused, and its successor's record stands."""
    zombie = bench.claimed("key", "a", lease=1.0)
    bench.advance(2.0)
    heir = bench.swap(next_of(zombie, owner="b", fence=zombie.fence + 1, beat=0), zombie).record
    reply = bench.swap(next_of(zombie, status=COMPLETED, result="zombie"), zombie)
    expect((reply.won, reply.record) == (False, heir), "a zombie's swap is refused, and it is shown its successor")
    expect(bench.load("key") == heir, "the successor's record stands")


@check
def swap_of_nothing_is_refused(bench: Bench) -> None:
    """Swap of an absent key is refused and returns no record."""
    held = bench.claimed()
    bench.do(bench.store.delete(held))
    reply = bench.swap(next_of(held), held)
    expect((reply.won, reply.record) == (False, None), "a swap of an absent key is refused with no record")
    expect(bench.load("key") is None, "a refused swap makes no record")


@check
def load_reads_the_latest(bench: Bench) -> None:
    """Load returns the record as the latest finished write left it, or none; it never wins."""
    reply = bench.do(bench.store.load("key"))
    expect((reply.won, reply.record) == (False, None), "a load of an absent key returns no record")
    held = bench.claimed()
    for _ in range(3):
        held = bench.swap(next_of(held), held).record or held
        reply = bench.do(bench.store.load("key"))
        expect((reply.won, reply.record) == (False, held), "a load returns the latest finished write")
        expect(bench.load("key") == held, "a load through a second handle does so, too")


@check
def times_are_the_stores(bench: Bench) -> None:
    """The store stamps the times of a write with its own clock, and replies with its time."""
    slack = bench.store.resolution + 5.0 * (bench.clock is None)
    for _ in range(2):
        bench.advance(2.0)
        key = f"at {bench.do(bench.store.load('?')).now}"
        reply = bench.insert(claim_of(key, "a", lease=30.0, keep=100.0))
        record = reply.record
        assert record is not None
        if bench.clock is not None:
            expect(abs(reply.now - bench.clock()) <= slack, "a reply's time is the store's clock's")
        expect(abs(record.created_at - reply.now) <= slack, "created_at is the store's time")
        expect(abs((record.updated_at or 0) - reply.now) <= slack, "updated_at is the store's time")
        expect(abs(record.lease_until - reply.now - 30.0) <= slack, "lease_until is the store's time plus the lease")
        late = (record.expires_at or 0) - record.lease_until - 100.0
        expect(-1e-3 < late < 1e-3 + bench.store.resolution, "expires_at is lease_until plus keep")


@check
def every_reply_has_the_time(bench: Bench) -> None:
    """Every reply carries the store's time, and time passes between them."""
    held = bench.claimed()
    verbs: dict[str, Callable[[], Reply]] = {
        "insert": lambda: bench.insert(claim_of("key", "b")),
        "swap": lambda: bench.swap(next_of(held._replace(owner="b")), held._replace(owner="b")),
        "load": lambda: bench.do(bench.store.load("key")),
        "delete": lambda: bench.do(bench.store.delete(held._replace(owner="b"))),
    }
    for name, verb in verbs.items():
        before = verb().now
        bench.advance(2.0)
        passed = verb().now - before
        expect(passed >= 2.0 - 2 * bench.store.resolution, f"the reply of {name} carries the store's time")


@check
def swap_keeps_created_at(bench: Bench) -> None:
    """Swap keeps the created_at that it is given, and stamps the lease anew."""
    held = bench.claimed()
    bench.advance(2.0)
    after = bench.swap(next_of(held, lease=30.0, keep=None), held).record
    assert after is not None
    expect(after.created_at == held.created_at, "created_at is kept by a swap that gives it")
    expect(abs(after.lease_until - held.created_at - 32.0) <= 1.0 + bench.store.resolution, "a swap stamps the lease")
    expect(after.expires_at is None, "keep=None never expires")
    written = (after.updated_at or 0.0) - held.created_at - 2.0
    expect(abs(written) <= 1.0 + bench.store.resolution, "a swap stamps updated_at with the store's time")
    read = bench.load("key")
    expect(read == after, "the stamps that were returned are those that are read")


@check
def swap_keeps_what_it_does_not_name(bench: Bench) -> None:
    """A swap, alone or in a batch, changes only the fields of a record: what a newer version has added stays."""
    if bench.unknown is None:
        return
    held = [bench.claimed(key) for key in ("a", "b")]
    stay = [bench.unknown(bench.store, record.key) for record in held]
    swapped = [bench.swap(next_of(record, result="1"), record).record or record for record in held]
    expect(all(stays() for stays in stay), "a swap keeps the fields that it does not name")
    bench.do(bench.store.swap_many([(next_of(record), record) for record in swapped]))
    expect(all(stays() for stays in stay), "a swap in a batch keeps the fields that it does not name")


@check
def leases_are_not_lowered(bench: Bench) -> None:
    """A write's lease ends after its seconds, or at its ``until`` when that is later; its expiry follows."""
    first = bench.claimed("key", "a", lease=60.0, keep=600.0)
    later = next_of(first, status=IN_PROGRESS, lease=1.0, keep=600.0, until=first.lease_until)
    record = bench.swap(later, first).record
    expect(record is not None and record.lease_until == first.lease_until, "a renewal does not lower the lease")
    assert record is not None
    expect(record.expires_at is not None and record.expires_at >= record.lease_until + 600, "it expires after that")
    record = bench.swap(
        next_of(record, status=IN_PROGRESS, lease=90.0, keep=600.0, until=record.lease_until), record
    ).record
    expect(record is not None and record.lease_until > first.lease_until, "a longer renewal raises it")
    expect(bench.load("key") == record, "the lease that was returned is the one that is read")


@check
def fences_are_stamped(bench: Bench) -> None:
    """A fence of 0 is stamped with the store's time in microseconds, larger after a purge; a given one is kept."""
    first = bench.claimed("key", "a", lease=1.0, keep=0.0)
    expect(abs(first.fence - first.created_at * 1e6) < 2e6, "a fence of 0 is stamped with the time in microseconds")
    after = bench.swap(next_of(first, fence=first.fence + 1, owner="b", lease=0.5, keep=0.0), first).record
    assert after is not None
    expect(after.fence == first.fence + 1, "a given fence is kept")
    bench.advance(2.0)
    bench.do(bench.store.purge(100))
    again = bench.claimed("key", "c")
    expect(again.fence > after.fence, "the fence after a purge is larger than every one before it")
    big = bench.claimed("big", "a", fence=2**53 - 1)
    expect(big.fence == 2**53 - 1 == (bench.load("big") or again).fence, "a fence of 53 bits is kept exactly")


@check
def fields_round_trip(bench: Bench) -> None:
    """Every field round-trips: none, empty, long and unicode texts, any number."""
    for number, text in enumerate(TEXTS):
        key = f"text {number}"
        texts = {"fingerprint": text, "result": text, "error": text, "worker": text[:99], "needs": text[:99] or None}
        record = bench.claimed(key, "a", attempts=7, beat=3, **texts)
        read = bench.load(key)
        expect(read == record, f"a record is read as it was written ({text[:20]!r})")
        assert read is not None
        kept = (read.fingerprint, read.result, read.error, read.attempts, read.beat, read.owner, read.status)
        expect(kept == (text, text, text, 7, 3, "a", IN_PROGRESS), f"every field is kept ({text[:20]!r})")
    record = bench.claimed("none", "a", fingerprint=None, result=None, error=None, keep=None)
    read = bench.load("none")
    expect(read == record and read is not None, "a record without texts is read as it was written")
    expect(
        read is not None and (read.fingerprint, read.result, read.error, read.expires_at) == (None,) * 4, "None stays"
    )
    expect(isinstance(read, Record), "what is read is a Record")
    expect(read is not None and type(read.fence) is int and type(read.lease_until) is float, "numbers keep their type")


@check
def keys_are_distinct(bench: Bench) -> None:
    """Keys of any characters are distinct keys."""
    for key in KEYS:
        expect(bench.insert(claim_of(key, f"owner of {key}")).won, f"{key!r} is a key of its own")
    for key in KEYS:
        read = bench.load(key)
        expect(read is not None and (read.key, read.owner) == (key, f"owner of {key}"), f"{key!r} is found again")


@check
def insert_many_in_order(bench: Bench) -> None:
    """Insert_many inserts each on its own merits and replies in the same order."""
    held = bench.claimed("k1", "a")
    replies = _replies(bench.do(bench.store.insert_many([claim_of(f"k{i}", "b") for i in (2, 1, 0)])))
    expect([reply.won for reply in replies] == [True, False, True], "each insert of a batch is won or lost by itself")
    expect(replies[1].record == held, "a lost insert of a batch returns the record held")
    keys = [reply.record and reply.record.key for reply in replies]
    expect(keys == ["k2", "k1", "k0"], "the replies of a batch are in its order")
    for reply in replies:
        assert reply.record is not None
        expect(bench.load(reply.record.key) == reply.record, "a batch writes what it replies")
    expect(bench.do(bench.store.insert_many([])) == [], "an empty batch has no replies")


@check
def insert_many_of_one_key(bench: Bench) -> None:
    """Insert_many takes one key only once."""
    replies = _replies(bench.do(bench.store.insert_many([claim_of("key", "a"), claim_of("key", "b")])))
    expect([reply.won for reply in replies] == [True, False], "the first of two inserts of one key in a batch is won")
    expect(replies[1].record == replies[0].record, "the second is shown the first")


@check
def swap_many_in_order(bench: Bench) -> None:
    """Swap_many swaps each on its own merits and replies in the same order."""
    seen = [bench.claimed(f"k{i}", "a") for i in range(3)]
    stranger = seen[1]._replace(owner="b")
    gone = seen[2]._replace(key="absent")
    pairs = [(next_of(r, status=COMPLETED, result=r.key), r) for r in (seen[2], stranger, gone, seen[0])]
    replies = _replies(bench.do(bench.store.swap_many(pairs)))
    expect([reply.won for reply in replies] == [True, False, False, True], "each swap of a batch is judged by itself")
    expect(replies[1].record == seen[1], "a refused swap of a batch returns the record held")
    expect(replies[2].record is None, "a swap of an absent key in a batch returns no record")
    results = [(reply.record and reply.record.result) for reply in (replies[0], replies[3])]
    expect(results == ["k2", "k0"], "the replies of a batch are in its order")
    expect(bench.load("k1") == seen[1], "a refused swap of a batch changes nothing")
    expect(bench.load("k2") == replies[0].record, "a batch writes what it replies")
    expect(bench.do(bench.store.swap_many([])) == [], "an empty batch has no replies")


@check
def large_batches(bench: Bench) -> None:
    """A batch of a hundred is like a hundred requests."""
    replies = _replies(bench.do(bench.store.insert_many([claim_of(f"k{i}", "a") for i in range(100)])))
    expect(all(reply.won for reply in replies), "a hundred inserts of absent keys are won")
    records = [reply.record for reply in replies if reply.record is not None]
    swapped = _replies(bench.do(bench.store.swap_many([(next_of(r, status=COMPLETED), r) for r in records])))
    expect(all(reply.won for reply in swapped), "a hundred swaps of what was seen are won")
    expect(len({r.record.key for r in swapped if r.record}) == 100, "a hundred swaps have a hundred replies")


@check
def one_insert_wins(bench: Bench) -> None:
    """Of many inserts of one key at once exactly one is won, and all see the same record."""
    for round_ in range(5):
        key = f"race {round_}"
        writes = [claim_of(key, f"owner {number}") for number in range(8)]
        _one_winner(bench.race([partial(_insert, write) for write in writes]), "insert")


@check
def one_swap_wins(bench: Bench) -> None:
    """Of many swaps of one record at once exactly one is won."""
    for round_ in range(5):
        seen = bench.claimed(f"race {round_}", "a", lease=0.0)
        writes = [next_of(seen, owner=f"owner {i}", beat=0, fence=seen.fence + 1) for i in range(8)]
        _one_winner(bench.race([partial(_swap, write, seen) for write in writes]), "swap")


def _replies(answers: Sequence[Answered]) -> list[Reply]:
    """Return replies none of which is an error."""
    expect(not any(isinstance(one, StoreError) for one in answers), "no member of a batch fails")
    return [one for one in answers if isinstance(one, Reply)]


def _insert(write: Write, store: Store) -> Steps[Reply]:
    return store.insert(write)


def _swap(write: Write, seen: Record, store: Store) -> Steps[Reply]:
    return store.swap(write, seen)


def _one_winner(replies: list[Reply], verb: str) -> None:
    expect(sum(reply.won for reply in replies) == 1, f"of many at once exactly one {verb} is won")
    expect(len({reply.record for reply in replies}) == 1, f"the losers of {verb} see the winner's record")

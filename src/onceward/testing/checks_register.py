"""The checks of the register's verbs, one key at a time: insert, swap and load."""

from onceward.core.record import COMPLETED, IN_PROGRESS, RARE, RELEASED, Record
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
    record = bench.claimed("key", "a")
    expect(record.owner == "a", "a won insert returns the record that it made")
    expect(bench.load("key") == record, "what a won insert returned is what is read afterwards")


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
    """Insert loses to a record in any status, even lapsed or expired, because the store decides nothing."""
    for number, status in enumerate((COMPLETED, RELEASED, IN_PROGRESS)):
        held = bench.claimed(f"key {number}", "a", status=status, lease=1.0, keep=30.0)
        bench.advance(2.0)
        reply = bench.insert(claim_of(f"key {number}", "b"))
        expect((reply.won, reply.record) == (False, held), f"an insert loses to a record that is {status}")


@check
def swap_writes_what_was_seen(bench: Bench) -> None:
    """Swap writes when the record held has the owner, the fence and the beat of the one seen."""
    record = bench.swapped(bench.claimed(), status=COMPLETED, result="1")
    expect(bench.load("key") == record, "what a won swap returned is what is read afterwards")
    expect(record.result == "1", "a swap writes every field")


@check
def swap_looks_at_the_version_only(bench: Bench) -> None:
    """Swap depends on owner, fence and beat only, not on other fields of the one seen."""
    held = bench.claimed()
    seen = held._replace(lease_until=0.0, attempts=9, result="?", status=RELEASED)
    expect(bench.swap(next_of(held, result="1"), seen).won, "a swap is conditioned on owner, fence and beat only")


@check
def swap_refuses_another_owner(bench: Bench) -> None:
    """Swap by another owner is refused and returns the record held."""
    held = bench.claimed("key", "a")
    _expect_refusal(
        bench, held._replace(owner="b"), held, "a swap with another owner is refused and returns what is held"
    )


@check
def swap_refuses_another_fence(bench: Bench) -> None:
    """Swap of an earlier claim of the same owner, with the same beat, is refused."""
    held = bench.claimed()
    earlier = held._replace(fence=held.fence - 1)
    _expect_refusal(bench, earlier, held, "a swap with another fence is refused and returns what is held")


@check
def swap_refuses_another_beat(bench: Bench) -> None:
    """Swap of an earlier beat is refused."""
    first = bench.claimed()
    _expect_refusal(bench, first, bench.swapped(first), "a swap of an earlier beat is refused")


@check
def zombie_is_refused(bench: Bench) -> None:
    """A zombie's write after a takeover is refused, and its successor's record stands."""
    zombie = bench.claimed("key", "a", lease=1.0)
    bench.advance(2.0)
    heir = bench.swapped(zombie, owner="b", fence=zombie.fence + 1, beat=0)
    _expect_refusal(bench, zombie, heir, "a zombie's swap is refused, and it is shown its successor")


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
        held = bench.swapped(held)
        reply = bench.do(bench.store.load("key"))
        expect((reply.won, reply.record) == (False, held), "a load returns the latest finished write")
        expect(bench.load("key") == held, "a load through a second handle returns it too")


@check
def swap_keeps_what_it_does_not_name(bench: Bench) -> None:
    """A swap, alone or in a batch, changes only the fields of a record. A field of a newer version stays."""
    if bench.unknown is None:
        return
    held = [bench.claimed(key) for key in ("a", "b")]
    stay = [bench.unknown(bench.store, record.key) for record in held]
    swapped = [bench.swapped(record, result="1") for record in held]
    expect(all(stays() for stays in stay), "a swap keeps the fields that it does not name")
    bench.do(bench.store.swap_many([(next_of(record), record) for record in swapped]))
    expect(all(stays() for stays in stay), "a swap in a batch keeps the fields that it does not name")


@check
def fields_round_trip(bench: Bench) -> None:
    """Every field round-trips: none, empty, long and unicode texts, any number."""
    for number, text in enumerate(TEXTS):
        key = f"text {number}"
        texts = {"fingerprint": text, "result": text, "error": text, "worker": text[:99], "needs": text[:99] or None}
        rare = {name: text[: 99 + place] for place, name in enumerate(RARE[1:]) if name != "due_at"}
        record = bench.claimed(key, "a", attempts=7, beat=3, due=None if number % 2 else 5.0, **texts, **rare)
        expect(bench.load(key) == record, f"a record is read as it was written ({text[:20]!r})")
        values = (
            record.fingerprint,
            record.result,
            record.error,
            record.attempts,
            record.beat,
            record.owner,
            record.status,
        )
        expect({name: getattr(record, name) for name in rare} == rare, f"every rare field is kept ({text[:20]!r})")
        expect((record.due_at is None) == bool(number % 2), "the time at which messages are due is kept")
        expect(values == (text, text, text, 7, 3, "a", IN_PROGRESS), f"every field is kept ({text[:20]!r})")
    record = bench.claimed("none", "a", fingerprint=None, result=None, error=None, keep=None)
    read = bench.load("none")
    assert read is not None
    expect(read == record, "a record without texts is read as it was written")
    expect((read.fingerprint, read.result, read.error, read.expires_at) == (None,) * 4, "None stays")
    expect(isinstance(read, Record), "what is read is a Record")
    expect(type(read.fence) is int and type(read.lease_until) is float, "numbers keep their type")


@check
def keys_are_distinct(bench: Bench) -> None:
    """Keys of any characters are distinct keys."""
    for key in KEYS:
        expect(bench.insert(claim_of(key, f"owner of {key}")).won, f"{key!r} is a key of its own")
    for key in KEYS:
        read = bench.load(key)
        expect(read is not None and (read.key, read.owner) == (key, f"owner of {key}"), f"{key!r} is found again")


def _expect_refusal(bench: Bench, seen: Record, held: Record, sentence: str) -> None:
    """Check that a swap of ``seen`` is refused, shows the record held, and leaves it."""
    reply = bench.swap(next_of(seen, status=COMPLETED, result="refused"), seen)
    expect((reply.won, reply.record) == (False, held), sentence)
    expect(bench.load("key") == held, "a refused swap changes nothing")

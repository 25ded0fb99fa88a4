"""The checks of the register's verbs, one key at a time: insert, swap and load."""

from onceward.core.record import COMPLETED, IN_PROGRESS, RARE, RELEASED, Record
from onceward.testing.bench import Bench, check, claim_of, expect, next_of, won

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
    """Insert loses to a record in any status, even lapsed or expired, changes nothing, and returns the record held."""
    for status in (COMPLETED, RELEASED, IN_PROGRESS):
        held = bench.claimed(status, "a", status=status, fingerprint="f", lease=1.0, keep=30.0)
        bench.advance(2.0)
        reply = bench.insert(claim_of(status, "b"))
        expect(not reply.won, "an insert of a key that is held is lost")
        expect(reply.record == held, f"an insert that loses to a record that is {status} returns it")
        expect(bench.load(status) == held, "a lost insert changes nothing")


@check
def swap_writes_what_was_seen(bench: Bench) -> None:
    """Swap writes when the record held has the owner, the fence and the beat of the one seen, whatever else it has."""
    held = bench.claimed()
    seen = held._replace(lease_until=0.0, attempts=9, result="?", status=RELEASED)
    record = won(bench.swap(next_of(held, status=COMPLETED, result="1"), seen), "swap")
    expect(bench.load("key") == record, "what a won swap returned is what is read afterwards")
    expect(record.result == "1", "a swap writes every field")


@check
def swap_refuses_another_version(bench: Bench) -> None:
    """Swap of another owner, fence or beat, as of a zombie after a takeover, is refused and returns the record held."""
    zombie = bench.claimed("key", "a", lease=1.0)
    bench.advance(2.0)
    held = bench.swapped(zombie, owner="b", fence=zombie.fence + 1)
    stale = {
        "by a zombie": zombie,
        "with another owner": held._replace(owner="a"),
        "of an earlier beat": held._replace(beat=0),
        "with another fence": held._replace(fence=zombie.fence),
    }
    for what, seen in stale.items():
        reply = bench.swap(next_of(seen, status=COMPLETED, result="refused"), seen)
        expect((reply.won, reply.record) == (False, held), f"a swap {what} is refused and returns what is held")
        expect(bench.load("key") == held, "a refused swap changes nothing")


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
def fields_round_trip(bench: Bench) -> None:
    """Every field round-trips: none, empty, long and unicode texts, any number."""
    for number, text in enumerate(TEXTS):
        fields = {"fingerprint": text, "result": text, "error": text, "worker": text[:99], "attempts": 7, "beat": 3}
        fields |= {name: text[: 98 + place] for place, name in enumerate(RARE) if name != "due_at"}
        fields["needs"] = text[:99] or None
        record = bench.claimed(f"text {number}", "a", due=None if number % 2 else 5.0, **fields)
        kept = {name: getattr(record, name) for name in fields}
        expect(kept == fields, f"every field is kept ({text[:20]!r})")
        expect((record.due_at is None) == bool(number % 2), "the time at which messages are due is kept")
        expect(bench.load(record.key) == record, f"a record is read as it was written ({text[:20]!r})")
    record = bench.claimed("none", "a", fingerprint=None, result=None, error=None, keep=None)
    read = bench.load("none")
    expect(read == record, "a record without texts is read as it was written")
    expect((record.fingerprint, record.result, record.error, record.expires_at) == (None,) * 4, "None stays")
    expect(isinstance(read, Record), "what is read is a Record")
    expect(type(record.fence) is int and type(record.lease_until) is float, "numbers keep their type")


@check
def keys_are_distinct(bench: Bench) -> None:
    """Keys of any characters are distinct keys."""
    for key in KEYS:
        expect(bench.insert(claim_of(key, f"owner of {key}")).won, f"{key!r} is a key of its own")
    for key in KEYS:
        read = bench.load(key)
        expect(read is not None and (read.key, read.owner) == (key, f"owner of {key}"), f"{key!r} is found again")

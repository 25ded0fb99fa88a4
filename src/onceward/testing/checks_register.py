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
def writes_are_read(bench: Bench) -> None:
    """Insert and swap return the record that they made. A load through any handle returns the latest one, or none; it never wins."""
    held: Record | None = None
    for number in range(4):
        for store in (bench.store, bench.other):
            reply = bench.do(store.load("key"), store)
            expect(reply[:2] == (False, held), "a load returns what the latest finished write returned, or no record")
        if held is None:
            held = bench.claimed("key", "a")
            continue
        seen = held._replace(lease_until=0.0, attempts=9, result="?", status=RELEASED)  # of its version
        held = won(bench.swap(next_of(held, status=COMPLETED, result=str(number)), seen), "swap")
        expect((held.owner, held.result) == ("a", str(number)), "a swap writes every field")


@check
def a_write_needs_the_version_held(bench: Bench) -> None:
    """Insert loses to a record in any status, even lapsed. Swap and delete lose if owner, fence or beat is another, as of a zombie.

    What loses changes nothing, and returns the record held, or none.
    """
    for status, lease in ((COMPLETED, 0.0), (RELEASED, 0.0), (IN_PROGRESS, 0.0), (IN_PROGRESS, 60.0)):
        key, store = f"{status} {lease}", bench.store
        zombie = bench.claimed(key, "a", lease=0.0, keep=30.0)
        held = bench.swapped(zombie, owner="b", fence=zombie.fence + 1, status=status, lease=lease, keep=30.0)
        stale = {
            "by a zombie": zombie,
            "with another owner": held._replace(owner="a"),
            "of an earlier beat": held._replace(beat=0),
            "with another fence": held._replace(fence=zombie.fence),
        }
        losing = {"insert of a key that is held": store.insert(claim_of(key, "c"))}
        for what, seen in stale.items():
            losing[f"swap {what}"] = store.swap(next_of(seen, status=COMPLETED, result="refused"), seen)
            losing[f"delete {what}"] = store.delete(seen)
        for what, steps in losing.items():
            expect(bench.do(steps)[:2] == (False, held), f"{what} is refused, and returns the record held ({key})")
            expect(bench.load(key) == held, f"{what} changes nothing ({key})")
        expect(bench.do(store.delete(held)).won and bench.load(key) is None, "a delete of the version seen removes it")
        for steps in (store.swap(next_of(held), held), store.delete(held)):
            expect(bench.do(steps)[:2] == (False, None), "a write of an absent key is refused with no record")
            expect(bench.load(key) is None, "a refused write makes no record")


@check
def fields_round_trip(bench: Bench) -> None:
    """Every field round-trips: none, empty, long and unicode texts, any number."""
    for number, text in enumerate((None, *TEXTS)):
        fields = {name: text and text[: 98 + place] for place, name in enumerate(("worker", *RARE)) if name != "due_at"}
        fields |= {"fingerprint": text, "result": text, "error": text, "needs": fields["needs"] or None}
        due = 5.0 if number % 2 else None
        record = bench.claimed(f"text {number}", "a", attempts=7, beat=3, due=due, **fields)
        expect(
            {name: getattr(record, name) for name in fields} == fields, f"every field is kept ({text and text[:20]!r})"
        )
        expect((record.attempts, record.beat, record.due_at is None) == (7, 3, due is None), "numbers are kept")
        expect((type(record.fence), type(record.lease_until)) == (int, float), "numbers keep their type")
        expect(bench.load(record.key) == record, f"a record is read as it was written ({text and text[:20]!r})")


@check
def keys_are_distinct(bench: Bench) -> None:
    """Keys of any characters are distinct keys."""
    for key in KEYS:
        expect(bench.insert(claim_of(key, f"owner of {key}")).won, f"{key!r} is a key of its own")
    for key in KEYS:
        read = bench.load(key)
        expect(read is not None and (read.key, read.owner) == (key, f"owner of {key}"), f"{key!r} is found again")

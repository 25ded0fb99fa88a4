"""The checks of many writes: in one batch, and at once."""

from collections.abc import Callable, Sequence
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED, Record, Reply, Write
from onceward.core.register import Answered, KeyLocked
from onceward.errors import StoreError
from onceward.testing.bench import Bench, check, claim_of, expect, next_of

_TRIES: Final = 20  # of a racer whose key is locked


@check
def insert_many_in_order(bench: Bench) -> None:
    """Insert_many wins or loses each insert by itself, and replies in the same order."""
    held = bench.claimed("k1", "a")
    replies = replies_of(bench.do(bench.store.insert_many([claim_of(f"k{i}", "b") for i in (2, 1, 0)])))
    expect([reply.won for reply in replies] == [True, False, True], "each insert of a batch is won or lost by itself")
    expect(replies[1].record == held, "a lost insert of a batch returns the record held")
    for key, reply in zip(("k2", "k1", "k0"), replies, strict=True):
        expect(reply.record is not None and reply.record.key == key, "the replies of a batch are in its order")
        expect(bench.load(key) == reply.record, "a batch writes what it replies")
    expect(bench.do(bench.store.insert_many([])) == [], "an empty batch has no replies")


@check
def insert_many_of_one_key(bench: Bench) -> None:
    """Insert_many takes one key only once."""
    replies = replies_of(bench.do(bench.store.insert_many([claim_of("key", "a"), claim_of("key", "b")])))
    expect([reply.won for reply in replies] == [True, False], "the first of two inserts of one key in a batch is won")
    expect(replies[1].record == replies[0].record, "the second is shown the first")


@check
def swap_many_in_order(bench: Bench) -> None:
    """Swap_many wins or loses each swap by itself, and replies in the same order."""
    seen = [bench.claimed(f"k{i}", "a") for i in range(3)]
    stranger = seen[1]._replace(owner="b")
    absent = seen[2]._replace(key="absent")
    pairs = [(next_of(r, status=COMPLETED, result=r.key), r) for r in (seen[2], stranger, absent, seen[0])]
    replies = replies_of(bench.do(bench.store.swap_many(pairs)))
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
    replies = replies_of(bench.do(bench.store.insert_many([claim_of(f"k{i}", "a") for i in range(100)])))
    expect(all(reply.won for reply in replies), "a hundred inserts of absent keys are won")
    records = [reply.record for reply in replies if reply.record is not None]
    swapped = replies_of(bench.do(bench.store.swap_many([(next_of(r, status=COMPLETED), r) for r in records])))
    expect(all(reply.won for reply in swapped), "a hundred swaps of what was seen are won")
    expect(len({r.record.key for r in swapped if r.record}) == 100, "a hundred swaps have a hundred replies")


@check
def one_insert_wins(bench: Bench) -> None:
    """Of many inserts of one key at once exactly one is won, and all see the same record."""
    for turn in range(5):
        one_winner(bench, [claim_of(f"race {turn}", f"owner {number}") for number in range(8)])


@check
def one_swap_wins(bench: Bench) -> None:
    """Of many swaps of one record at once exactly one is won."""
    for turn in range(5):
        seen = bench.claimed(f"race {turn}", "a", lease=0.0)
        one_winner(bench, [next_of(seen, owner=f"owner {i}", beat=0, fence=seen.fence + 1) for i in range(8)], seen)


def replies_of(answers: Sequence[Answered]) -> list[Reply]:
    """Return replies none of which is an error."""
    expect(not any(isinstance(one, StoreError) for one in answers), "no member of a batch fails")
    return [one for one in answers if isinstance(one, Reply)]


def one_winner(bench: Bench, writes: list[Write], seen: Record | None = None) -> None:
    """Let all write at once. One of them wins."""
    verb = "insert" if seen is None else "swap"
    replies = bench.race(
        lambda store, n: _patiently(lambda: store.insert(writes[n]) if seen is None else store.swap(writes[n], seen))
    )
    wins = sum(reply.won for reply in replies)
    expect(wins == 1, f"of many at once exactly one {verb} is won")
    # The winner can write again before they look, for a larger fence.
    owners = {reply.record.owner for reply in replies if reply.record is not None}
    expect(len(owners) == 1 and all(reply.record for reply in replies), f"the losers of {verb} see the winner's record")


def _patiently(verb: Callable[[], Steps[Reply]]) -> Steps[Reply]:
    """Drive ``verb()`` again while another racer's write is not committed, as a slow disk makes it."""
    for _ in range(_TRIES):
        try:
            return (yield from verb())
        except KeyLocked:
            continue
    return (yield from verb())

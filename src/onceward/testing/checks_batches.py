"""The checks of many writes: in one batch, and at once."""

from collections.abc import Sequence
from typing import Final

from onceward.core.clock import boottime
from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED, Record, Reply, Write
from onceward.core.register import Answered
from onceward.core.retries import patience, retry_transient
from onceward.errors import StoreError
from onceward.stores.contract import Store
from onceward.testing.bench import Bench, check, claim_of, expect, next_of, won

_WRITES: Final = "a batch writes what it replies"


@check
def insert_many_in_order(bench: Bench) -> None:
    """Insert_many wins or loses each of a hundred inserts by itself, the second of one key too, and replies in the same order."""
    held = bench.claimed("k50", "a")
    keys = [*(f"k{number}" for number in reversed(range(100))), "k99"]
    replies = replies_of(bench.do(bench.store.insert_many([claim_of(key, "b") for key in keys])))
    expect([reply.record and reply.record.key for reply in replies] == keys, "the replies of a batch are in its order")
    lost = [reply.record for reply in replies if not reply.won]
    expect(
        lost == [held, replies[0].record], "a lost insert of a batch returns the record held, and the others are won"
    )
    expect([bench.load(key) for key in keys] == [reply.record for reply in replies], _WRITES)
    expect(bench.do(bench.store.insert_many([])) == [], "an empty batch has no replies")


@check
def swap_many_in_order(bench: Bench) -> None:
    """Swap_many wins or loses each of a hundred swaps by itself, and replies in the same order."""
    inserts = bench.do(bench.store.insert_many([claim_of(f"k{number}", "a") for number in range(100)]))
    held = [won(reply, "insert") for reply in replies_of(inserts)]
    seen = [*held[:1:-1], held[0]._replace(owner="b"), held[1]._replace(key="absent")]
    swaps = [(next_of(one, status=COMPLETED, result=one.key), one) for one in seen]
    replies = replies_of(bench.do(bench.store.swap_many(swaps)))
    expect([reply.won for reply in replies] == [True] * 98 + [False] * 2, "each swap of a batch is judged by itself")
    refused = [reply.record for reply in replies[98:]]
    expect(refused == [held[0], None], "a refused swap of a batch returns the record held, or none")
    results = [reply.record and reply.record.result for reply in replies[:98]]
    expect(results == [one.key for one in seen[:98]], "the replies of a batch are in its order")
    expect([bench.load(one.key) for one in seen] == [reply.record for reply in replies], _WRITES)
    expect(bench.do(bench.store.swap_many([])) == [], "an empty batch has no replies")


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

    def write(store: Store, number: int) -> Steps[Reply]:
        attempt = lambda: store.insert(writes[number]) if seen is None else store.swap(writes[number], seen)
        return retry_transient(
            attempt, boottime, patience(boottime)
        )  # another's write can be uncommitted, on a slow disk

    replies = bench.race(write)
    wins = sum(reply.won for reply in replies)
    expect(wins == 1, f"of many at once exactly one {verb} is won")
    # The winner can write again before they look, for a larger fence.
    owners = {reply.record.owner for reply in replies if reply.record is not None}
    expect(len(owners) == 1 and all(reply.record for reply in replies), f"the losers of {verb} see the winner's record")

"""Completions and heartbeats on PostgreSQL."""

import threading

import psycopg
import pytest

from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, RELEASED
from onceward.core.register import KeyLocked
from onceward.testing.bench import claim_of, next_of


def claimed(store, *keys):
    return [drive(store.insert(claim_of(key, "a")), store).record for key in keys]


def completing(held):
    return next_of(held, status=COMPLETED, result='{"a": 1}', keep=60.0)


def test_a_swap_is_won_once_and_then_refused_with_what_it_met(store):
    (held,) = claimed(store, "key")
    won = drive(store.swap(completing(held), held), store)
    assert (won.won, won.record.status, won.record.result) == (True, COMPLETED, '{"a": 1}')
    assert (won.record.fence, won.record.beat) == (held.fence, held.beat + 1)
    assert won.record == drive(store.load("key"), store).record
    late = drive(store.swap(next_of(held, status=RELEASED), held), store)
    assert (late.won, late.record) == (False, won.record)
    assert late.now >= won.now
    missing = drive(store.swap(completing(held._replace(key="other")), held._replace(key="other")), store)
    assert (missing.won, missing.record) == (False, None)
    assert missing.now >= late.now


def test_a_batch_of_swaps_wins_is_refused_and_misses_by_key(store):
    first, second = claimed(store, "k1", "k2")
    gone = first._replace(key="k0")
    second_now = drive(store.swap(next_of(second), second), store).record
    pairs = [(completing(held), held) for held in (second, gone, first)]
    refused, missing, won = drive(store.swap_many(pairs), store)
    assert (won.won, won.record.key, won.record.status, won.record.beat) == (True, "k1", COMPLETED, first.beat + 1)
    assert (refused.won, refused.record) == (False, second_now)
    assert (missing.won, missing.record) == (False, None)
    assert min(won.now, refused.now, missing.now) > 0


def test_swaps_of_a_key_in_an_open_transaction_are_locked(store, postgres):
    first, second = claimed(store, "k1", "k2")
    with psycopg.connect(postgres.url) as other:
        other.execute(f"UPDATE {store.names.table} SET worker = 'me' WHERE key = 'k1'")
        with pytest.raises(KeyLocked):
            drive(store.swap(completing(first), first), store)
        locked, won = drive(store.swap_many([(completing(held), held) for held in (first, second)]), store)
        assert isinstance(locked, KeyLocked)
        assert won.won
    assert drive(store.swap(completing(first), first), store).won


@pytest.mark.parametrize("many", [False, True])
def test_a_swap_that_waited_for_a_takeover_is_refused_with_it(many, store, postgres):
    (held,) = claimed(store, "key")
    with psycopg.connect(postgres.url) as other:
        other.execute(f"UPDATE {store.names.table} SET owner = 'me', fence = fence + 1")
        timer = threading.Timer(0.3, other.commit)
        timer.start()
        pair = completing(held), held
        reply = drive(store.swap_many([pair]), store)[0] if many else drive(store.swap(*pair), store)
        timer.join()
    assert (reply.won, reply.record.owner, reply.record.fence) == (False, "me", held.fence + 1)


def test_a_new_fence_is_asked_for_by_a_swap_too(store):
    (held,) = claimed(store, "key")
    held = drive(store.swap(next_of(held, status=RELEASED, lease=0.0), held), store).record
    won = drive(store.swap(claim_of("key", "b", attempts=2), held), store)
    assert (won.won, won.record.owner) == (True, "b")
    assert won.record.fence > held.fence

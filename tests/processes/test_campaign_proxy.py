"""A campaign through proxies: they, their clients and the ledger are killed, and the application loses some of its answers."""

import sys
from collections import Counter, defaultdict

import pytest

from faults.campaign import own_ledger
from faults.under_fire import LEASE, under_fire
from onceward import Once
from web.bank import Bank

pytestmark = pytest.mark.nightly


def test_each_request_through_a_proxy_takes_effect_once_under_fire(tmp_path, request):
    bank = Bank()
    with own_ledger("postgresql", request, tmp_path) as (ledger, server), bank.serving() as upstream:
        Once(ledger.url).ledger.stats()  # makes the tables

        def serve(port):
            options = f"--name campaign --scope everybody --wait 10s --silence 10s --lease {LEASE}s --port {port}"
            command = [sys.executable, "-m", "onceward", "proxy", "--upstream", upstream, "--store", ledger.url]
            return [*command, *options.split()]

        fire = under_fire(ledger, server, tmp_path, serve=serve, caller="campaign_caller.py")
        once = Once(ledger.url)
        counts = once.ledger.stats()
        once.close()
    made, keys, fences = Counter(), defaultdict(set), defaultdict(list)
    for number, key, fence in bank.asked:
        made[number] += 1
        keys[number].add(key)
        fences[number].append(fence)
    everyone = set(range(fire.messages))
    lost = everyone - made.keys()
    doubled = {number for number, found in keys.items() if len(found) > 1}
    repeats = made.total() - len(made)
    unexcused = sum(max(0, times - 1 - bank.lost[number]) for number, times in made.items())
    print(
        f"\n{fire.messages:,} messages of two clients each, {len(bank.asked):,} requests to the application, {fire.kills} kills, "
        f"{fire.crashes} crashes of the ledger, {sum(bank.lost.values())} answers lost by the application, {fire.seconds:.0f} s: by the "
        f"derived key lost {len(lost)}, doubled {len(doubled)}; repeats {repeats}, of them {unexcused} after kills"
    )
    assert not lost
    assert not doubled
    assert len(bank.receipts) == fire.messages
    assert all(len(set(found)) == len(found) for found in fences.values()), "two attempts had one fence"
    assert unexcused <= fire.excuse
    by_number = {receipt["id"]: receipt for receipt in bank.receipts.values()}
    assert all(receipts == by_number for receipts in fire.receipts)
    assert {status: counts[status] for status in ("COMPLETED", "IN_PROGRESS", "RELEASED", "PARKED")} == {
        "COMPLETED": fire.messages,
        "IN_PROGRESS": 0,
        "RELEASED": 0,
        "PARKED": 0,
    }

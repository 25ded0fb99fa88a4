"""A campaign through the service: its instances, its clients and the ledger are killed, and replies are lost."""

import sys
from collections import Counter, defaultdict

import pytest

from faults.campaign import own_ledger
from faults.under_fire import under_fire
from onceward import Once

pytestmark = pytest.mark.nightly


def test_each_key_claimed_at_the_service_takes_effect_once_under_fire(tmp_path, request):
    journal = tmp_path / "journal"
    journal.touch()
    with own_ledger("postgresql", request, tmp_path) as (ledger, server):
        Once(ledger.url).ledger.stats()  # makes the tables

        def serve(port):
            return [sys.executable, "-m", "onceward", "serve", "--store", ledger.url, "--port", port, "--no-log"]

        fire = under_fire(ledger, server, tmp_path, serve=serve, caller="campaign_claimer.py", journal=str(journal))
        once = Once(ledger.url)
        counts = once.ledger.stats()
        once.close()
    made, keys, fences, said, ids = Counter(), defaultdict(set), defaultdict(list), Counter(), Counter()
    for line in journal.read_text().splitlines():
        what, *found = line.split()
        said[what] += 1
        if what == "effect":
            number, fence, key, name = found
            made[int(number)] += 1
            keys[int(number)].add(key)
            fences[int(number)].append(int(fence))
            ids[name] += 1
    lost = set(range(fire.messages)) - made.keys()
    doubled = {number for number, found in keys.items() if len(found) > 1}
    repeats = made.total() - len(made)
    print(
        f"\n{fire.messages:,} messages of two clients each, {fire.kills} kills, {fire.crashes} crashes of the ledger, "
        f"{fire.seconds:.0f} s: by the derived key lost {len(lost)}, doubled {len(doubled)}; repeats {repeats}; ids that were used "
        f"twice {said['refused'] + said['forgotten']}, refused {said['refused']}"
    )
    assert not lost
    assert not doubled
    assert repeats <= fire.excuse
    assert set(ids.values()) == {1}, "one claim made two effects"
    assert all(len(set(found)) == len(found) for found in fences.values()), "two claims had one fence"
    assert said["refused"]
    assert all(
        receipts == {number: {"id": number, "by": min(keys[number])} for number in range(fire.messages)}
        for receipts in fire.receipts
    )
    assert counts["COMPLETED"] == fire.messages
    assert counts["PARKED"] == 0

"""Campaigns: consumers are killed, and their broker and the ledger are restarted in the middle. Or proxies, services and their clients."""

import sys
from collections import Counter, defaultdict

import pytest
from campaign_stations import CAMPAIGNS

from faults.campaign import LEASE, campaign, own_ledger, under_fire
from onceward import Once
from web.http_servers import Bank

pytestmark = pytest.mark.nightly


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_each_message_takes_effect_once_under_fire(name, request, aws, tmp_path, monkeypatch):
    station = CAMPAIGNS[name](tmp_path)
    if name == "sqs":
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", station.server.url)

    def redrive(numbers):
        once = Once(station.url)
        station.redrive(once, numbers)
        once.close()

    try:
        with own_ledger(station.ledger, request, tmp_path) as (ledger, server):
            station.url = ledger.url
            environment = {"ONCEWARD_STORE": ledger.url, **station.options.pop("environment", {})}
            names = ("command", "publish", "left", "restart")
            options = {name: getattr(station, name) for name in names} | station.options
            campaign(ledger, server, tmp_path, redrive=redrive, environment=environment, **options)
    finally:
        station.stop()


class Told:
    """What was made under fire: how often each message, by which keys, and with which fences."""

    def __init__(self):
        self.made, self.keys, self.fences = Counter(), defaultdict(set), defaultdict(list)

    def add(self, number, key, fence):
        self.made[number] += 1
        self.keys[number].add(key)
        self.fences[number].append(fence)

    def check(self, fire, repeats, more=""):
        """Nothing was lost, by the derived key nothing doubled, and what was repeated was under way when something was killed."""
        lost = set(range(fire.messages)) - self.made.keys()
        doubled = {number for number, found in self.keys.items() if len(found) > 1}
        print(
            f"\n{fire.messages:,} messages of two clients each, {fire.kills} kills, {fire.crashes} crashes of the ledger, "
            f"{fire.seconds:.0f} s: lost {len(lost)}, doubled by the derived key {len(doubled)}; repeats {repeats}{more}"
        )
        assert (lost, doubled) == (set(), set())
        assert all(len(set(found)) == len(found) for found in self.fences.values()), "two claims had one fence"
        assert repeats <= fire.excuse


def counted(ledger):
    once = Once(ledger.url)
    counts = once.ledger.stats()
    once.close()
    return {status: counts[status] for status in ("COMPLETED", "IN_PROGRESS", "RELEASED", "PARKED")}


def test_each_request_through_a_proxy_takes_effect_once_under_fire_of_proxy(tmp_path, request):
    bank, told = Bank(), Told()
    with own_ledger("postgresql", request, tmp_path) as (ledger, server), bank.serving() as upstream:
        counted(ledger)  # makes the tables

        def serve(port):
            options = f"--name campaign --scope everybody --wait 10s --silence 10s --lease {LEASE}s --port {port}"
            command = [sys.executable, "-m", "onceward", "proxy", "--upstream", upstream, "--store", ledger.url]
            return [*command, *options.split()]

        fire = under_fire(ledger, server, tmp_path, serve=serve)
        counts = counted(ledger)
    for number, key, fence in bank.asked:
        told.add(number, key, fence)
    unexcused = sum(max(0, times - 1 - bank.lost[number]) for number, times in told.made.items())
    told.check(fire, unexcused, f" besides {sum(bank.lost.values())} after answers that the application lost")
    assert len(bank.receipts) == fire.messages
    by_number = {receipt["id"]: receipt for receipt in bank.receipts.values()}
    assert all(receipts == by_number for receipts in fire.receipts)
    assert counts == {"COMPLETED": fire.messages, "IN_PROGRESS": 0, "RELEASED": 0, "PARKED": 0}


def test_each_key_claimed_at_the_service_takes_effect_once_under_fire_of_service(tmp_path, request):
    journal, told, said, ids = tmp_path / "journal", Told(), Counter(), Counter()
    journal.touch()
    with own_ledger("postgresql", request, tmp_path) as (ledger, server):
        counted(ledger)  # makes the tables

        def serve(port):
            return [sys.executable, "-m", "onceward", "serve", "--store", ledger.url, "--port", port, "--no-log"]

        fire = under_fire(ledger, server, tmp_path, serve=serve, journal=str(journal))
        counts = counted(ledger)
    for line in journal.read_text().splitlines():
        what, *found = line.split()
        said[what] += 1
        if what == "effect":
            number, fence, key, name = found
            told.add(int(number), key, int(fence))
            ids[name] += 1
    used_twice = said["refused"] + said["forgotten"]
    told.check(fire, told.made.total() - len(told.made), f"; ids that were used twice {used_twice}")
    assert set(ids.values()) == {1}, "one claim made two effects"
    assert said["refused"]
    by_number = {number: {"id": number, "by": min(told.keys[number])} for number in range(fire.messages)}
    assert all(receipts == by_number for receipts in fire.receipts)
    assert (counts["COMPLETED"], counts["PARKED"]) == (fire.messages, 0)

"""An owner id that a client made is for one claim: what the table says, and that every other verdict is as ever."""

import pytest
from test_protocol import LAPSED, TABLE

from onceward.core import steps
from onceward.core.drivers import Sleep
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, released
from onceward.core.record import COMPLETED, PARKED, RELEASED
from onceward.core.steps import Bid
from stage import NOW, PLAIN, Stage, record
from tables import each

MINE = {"owner": "mine"}


@each(
    ("held", "verdict"),
    [
        (record(**MINE), Verdict.WON),
        (record(**MINE, **LAPSED), Verdict.USED),
        (record(**MINE, lease_until=NOW), Verdict.USED),
        (record(COMPLETED, **MINE), Verdict.USED),
        (record(RELEASED, **MINE), Verdict.USED),
        (record(PARKED, **MINE), Verdict.USED),
        (record(COMPLETED, **MINE, expires_at=NOW - 1.0, lease_until=NOW - 2.0), Verdict.USED),
        (record("UNHEARD_OF", **MINE), Verdict.UNKNOWN),
    ],
)
def test_an_owner_that_a_client_made_has_one_claim(held, verdict):
    assert decide(held, NOW, "mine", None, Policy(), single_use=True) is verdict


@each(("mark", "verdict"), [("a", Verdict.WON), (None, Verdict.WON), ("b", Verdict.MISMATCH)])
def test_a_repeated_request_has_the_same_input(mark, verdict):
    assert decide(record(**MINE, fingerprint="a"), NOW, "mine", mark, Policy(), single_use=True) is verdict


@each("row", [row for row in TABLE if row.partition(" ")[0] != "my"])
def test_what_others_hold_is_decided_as_ever(row):
    held, asked, verdict = TABLE[row]
    policy, mark = asked.get("policy", Policy()), asked.get("fingerprint")
    assert decide(held, NOW, "mine", mark, policy, single_use=True) is verdict


class Client(Stage):
    """Claims one key as an owner of its own making."""

    def bid(self, owner="x" * 32, **options):
        bid = Bid("k", owner, None, PLAIN._replace(**options), self.clock)
        return steps.claim(self.store, bid, single_use=True)

    def claim(self, owner="x" * 32):
        return self.drive(self.bid(owner))


def test_a_repeated_request_gets_the_same_claim():
    client = Client()
    first = client.claim()
    client.clock.advance(45.0)  # most of the lease is over, and a repeat does not renew it
    again = client.claim()
    assert again.record == first.record
    assert again.until == pytest.approx(first.until, abs=0.1)


def test_one_that_waits_takes_no_claim_that_its_own_repeat_has_ended():
    """The client gave up on its first request, and the same request was won and ended elsewhere."""
    client = Client()
    other = client.claim("y" * 32)
    waiting = client.bid(on_busy=30.0)
    request = next(waiting)
    request = waiting.send(client.store.exchange(request))  # busy: it sleeps
    client.end(other.record, released())
    client.end(client.claim().record, released())
    with pytest.raises(StopIteration) as end:
        while True:
            request = waiting.send(None if isinstance(request, Sleep) else client.store.exchange(request))
    assert end.value.value.verdict is Verdict.USED

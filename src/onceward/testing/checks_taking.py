"""The checks of an insert that takes what is free. A store can leave that to a swap: then it loses to every record."""

from collections.abc import Iterator
from typing import NamedTuple

from onceward.core.policy import Policy
from onceward.core.protocol import taking
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record, Reply, Write
from onceward.core.writes import FOLLOWING
from onceward.testing.bench import Bench, check, claim_of, expect
from onceward.testing.checks_batches import one_winner, replies_of

LONG = 1000.0
POLICIES = (Policy(), Policy(max_attempts=3), Policy(on_lapse="park"))


class Sample(NamedTuple):
    """A kind of record: its status, and what else is said of it. A ``lease`` of 0 is over soon."""

    status: str
    lease: float = 0.0
    keep: float | None = LONG
    attempts: int = 1
    fingerprint: str | None = "f"
    error: str | None = None
    needs: str | None = None


SAMPLES = (
    Sample(IN_PROGRESS, LONG),
    Sample(IN_PROGRESS, LONG, -2 * LONG),
    Sample(IN_PROGRESS),
    Sample(IN_PROGRESS, fingerprint=None, error="boom"),
    Sample(IN_PROGRESS, attempts=3),
    Sample(IN_PROGRESS, keep=0.0, attempts=3),
    Sample(IN_PROGRESS, needs="later"),
    Sample(RELEASED, error="boom"),
    Sample(RELEASED, attempts=2, fingerprint=None),
    Sample(RELEASED, attempts=3, error="boom"),
    Sample(RELEASED, attempts=0),
    Sample(RELEASED, keep=0.0, attempts=3, error="boom"),
    Sample(RELEASED, needs="later"),
    Sample(COMPLETED),
    Sample(COMPLETED, keep=None),
    Sample(COMPLETED, keep=0.0),
    Sample(COMPLETED, keep=0.0, needs="later"),
    Sample(PARKED, keep=None, error="boom"),
)


@check
def insert_takes_what_is_free(bench: Bench) -> None:
    """Insert takes a record only if it is free under the write's policy. The claim is what the protocol makes of it."""
    wanted = _asked(bench)
    for key, kind, claim in wanted:
        held = bench.load(key)
        if held is not None:  # an expired one can be purged meanwhile
            _judge(bench, held, claim, bench.insert(claim), f"{kind}, {claim.fingerprint}, {claim.taking}")


@check
def insert_many_takes_what_is_free(bench: Bench) -> None:
    """Insert_many takes the records that are free, each by itself."""
    wanted = _asked(bench)
    held = {key: bench.load(key) for key, _, _ in wanted}
    claims = [claim for _, _, claim in wanted]
    replies = replies_of(bench.do(bench.store.insert_many([*claims, claim_of("new", "b", taking=POLICIES[0])])))
    expect(replies.pop().won, "an insert of an absent key is won, whatever else its batch takes")
    for (key, kind, claim), reply in zip(wanted, replies, strict=True):
        if (before := held[key]) is not None and (before.expires_at or LONG * LONG) > reply.now:
            _judge(bench, before, claim, reply, f"in a batch: {kind}, {claim.fingerprint}, {claim.taking}")


@check
def insert_takes_nothing_unasked(bench: Bench) -> None:
    """Insert without a policy takes nothing, and no insert takes a record of its own owner."""
    held = bench.swapped(bench.claimed("key", "a"), status=RELEASED, lease=0.0)
    for claim in (claim_of("key", "b"), claim_of("key", "a", taking=Policy())):
        reply = bench.insert(claim)
        expect((reply.won, reply.record) == (False, held), "such an insert is lost, and returns the record held")
    expect(bench.load("key") == held, "such an insert changes nothing")


@check
def insert_knows_its_own_claim(bench: Bench) -> None:
    """An insert whose reply was lost meets its own record when it is sent again."""
    bench.swapped(bench.claimed("key", "a"), status=RELEASED, lease=0.0)
    claim = claim_of("key", "b", taking=Policy())
    held = bench.insert(claim).record
    again = bench.insert(claim)
    mine = again.record is not None and held is not None and again.record.attempts == held.attempts
    expect(mine and again.record == bench.load("key"), "the same insert again is shown the record that is held")
    expect(not again.won, "the same insert again is lost")


@check
def one_insert_takes(bench: Bench) -> None:
    """Of many inserts that take one record at once at most one is won, and all see the same record."""
    for turn in range(5):
        bench.swapped(bench.claimed(f"race {turn}", "a"), status=RELEASED, lease=0.0)
        claims = [claim_of(f"race {turn}", f"owner {number}", taking=Policy()) for number in range(8)]
        one_winner(bench, claims, takes=bench.takes)


def _asked(bench: Bench) -> list[tuple[str, Sample, Write]]:
    """Return keys with records of all kinds, and the claims to ask for them with."""
    asked = list(_claims())
    for key, kind, _ in asked:
        result = "1" if kind.status == COMPLETED else None
        bench.swapped(bench.claimed(key, "a", fingerprint=kind.fingerprint), **kind._asdict(), result=result)
    bench.advance(3.0)
    return asked


def _claims() -> Iterator[tuple[str, Sample, Write]]:
    for number, kind in enumerate(SAMPLES):
        for policy in POLICIES:
            for fingerprint in (None, "f", "g"):
                key = f"{number} {policy.max_attempts} {policy.on_lapse} {fingerprint}"
                yield key, kind, claim_of(key, "b", fingerprint=fingerprint, worker="host/2", taking=policy)


def _judge(bench: Bench, held: Record, claim: Write, reply: Reply, what: str) -> None:
    """Check that the store did with ``held`` what the protocol says, or left it."""
    taken = taking(claim, held, reply.now)
    if taken is None or (not reply.won and not bench.takes):
        expect((reply.won, reply.record) == (False, held), f"what is not taken is returned ({what})")
        expect(bench.load(held.key) == held, f"what is not taken is not changed ({what})")
        return
    made = reply.record
    if not reply.won or made is None:
        expect(False, f"a record that is free is taken ({what})")
        return
    expect(reply.before == held, f"the reply has the record that was replaced ({what})")
    expect(made.fence >= taken.fence, f"the fence grows ({what})")
    named = {row.field for row in FOLLOWING} - {"fence"}
    for field in (*named, "owner", "status", "beat", "fingerprint", "result", "worker"):
        expect(getattr(made, field) == getattr(taken, field), f"{field} is what the protocol makes of it ({what})")
    slack = 3.0 + 2 * bench.store.resolution
    expect(abs(made.lease_until - reply.now - claim.lease) <= slack, f"the lease is stamped anew ({what})")
    expect(bench.load(held.key) == made, f"what was returned is what is read ({what})")

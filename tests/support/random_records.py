"""Random records, claims and times in which equal values are common, and what the protocol makes of each."""

import random
from typing import NamedTuple

from onceward.core import history
from onceward.core.policy import Policy
from onceward.core.protocol import FREE, STATUSES, Verdict, decide
from onceward.core.record import Record, Write
from onceward.core.writes import FOLLOWING, Provenance, first_claim, next_claim

FIELDS = [row.field for row in FOLLOWING]
TIMES = (1.0, 2.0, 2.5, 3.0)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TEXTS = (None, "", "f", "g")
LINE = '\n{"attempt":1,"begin":1000e-3,"worker":"w","outcome":"RELEASED","error":"no","fence":%s,"end":1500e-3}'
OPEN = '\n{"begin":1000e-3,"fence":%s'
HISTORIES = (
    None,
    None,
    OPEN,
    LINE % 5,
    LINE * 30 % ((6,) * 30),
    LINE * 40 % ((6,) * 40) + OPEN,
    "h" * 3000,
    "\n" + "h" * (history.MOST - history.LINE),
    "\n" + "h" * (history.MOST - history.LINE - 1),
)
# The types of the columns of `cases`: the record, what the claim has itself, and what it asks with.
COLUMNS = {
    "n": "int",
    **dict.fromkeys(
        ("key", "status", "owner", "fingerprint", "error", "needs", "steps", "origin", "history", "worker", "trace"),
        "text",
    ),
    **dict.fromkeys(("fence", "beat", "attempts"), "bigint"),
    **dict.fromkeys(("lease_until", "created_at", "updated_at", "expires_at", "now"), "float8"),
    **dict.fromkeys(
        ("my_owner", "my_fingerprint", "on_lapse", "my_error", "my_needs", "my_steps", "my_origin", "my_history"),
        "text",
    ),
    **dict.fromkeys(("max_attempts", "my_fence", "my_attempts"), "bigint"),
    "my_created_at": "float8",
}


class Case(NamedTuple):
    """A claim that meets a record, or none."""

    held: Record | None
    claim: Write
    now: float

    @property
    def row(self) -> dict[str, object]:
        policy = self.claim.taking
        own = {f"my_{field}": getattr(self.claim, field) for field in (*FIELDS, "owner", "fingerprint")}
        held = {} if self.held is None else self.held._asdict()
        return held | own | {"now": self.now, "on_lapse": policy.on_lapse, "max_attempts": policy.max_attempts}

    @property
    def expected(self) -> list[object]:
        """The verdict, and the fields of the claim that follows if there is something to take."""
        if self.held is None:
            return [None, *(getattr(self.claim, field) for field in FIELDS)]
        verdict = decide(self.held, self.now, self.claim.owner, self.claim.fingerprint, self.claim.taking)
        if verdict not in FREE:
            return [verdict.name]
        taken = next_claim(self.claim, self.held, fresh=verdict is Verdict.START)
        return [verdict.name, *(getattr(taken, field) for field in FIELDS)]


def cases(count: int, seed: int) -> list[Case]:
    """Return so many cases."""
    pick = random.Random(seed).choice
    made = []
    for _ in range(count):
        held = Record(
            key="k",
            status=pick([*STATUSES, *STATUSES, "PAUSED", "completed"]),
            owner=pick(["me", "other", "other", "other"]),
            fence=pick([1, 7, 2**53]),
            beat=pick([-1, 0, 0, 1, 2]),
            lease_until=pick(TIMES),
            attempts=pick([0, 1, 2, 3]),
            fingerprint=pick(TEXTS),
            result=None,
            error=pick([None, "", "boom"]),
            created_at=pick(TIMES),
            expires_at=pick([None, *TIMES]),
            needs=pick([None, None, None, "", " ", "later", "later and more", "steps", "steps later"]),
            steps=pick([None, "[]", "[1]"]),
            origin=pick([None, "o"]),
            updated_at=pick([None, *TIMES]),
            worker=pick([None, "host/1", 'a "quoted" \\ name', "long" * 100]),
            trace=pick([None, TRACE, TRACE[:-1], ""]),
        )
        text = pick(HISTORIES)
        if text is not None and text.endswith(OPEN):
            text = text % pick([held.fence, held.fence, 3])  # 3: a line that another version left open
        held = held._replace(history=text)
        policy = Policy(on_lapse=pick(["retry", "park"]), max_attempts=pick([None, 1, 2, 3]))
        claim = first_claim("k", "me", pick(TEXTS), policy, Provenance(origin=pick([None, "p"])))
        made.append(Case(pick([held] * 19 + [None]), claim, pick(TIMES)))
    return made


def check(made: list[Case], rows: list[tuple]) -> None:
    """Compare what SQL said with the protocol."""
    assert len(rows) == len(made)
    for case, (verdict, *values, is_free) in zip(made, rows, strict=True):
        expected = case.expected
        assert [verdict, *values][: len(expected)] == expected, case
        assert bool(is_free) == (len(expected) > 1 and case.held is not None), case
    # No store decides about an id that a client made: the register's reply goes to the protocol.
    assert {case.expected[0] for case in made} == {None, *(verdict.name for verdict in Verdict)} - {Verdict.USED.name}

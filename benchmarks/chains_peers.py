"""A handler of three steps, with and without a message, guarded by onceward, and as a workflow of DBOS Transact.

Run by chains.py: python benchmarks/chains_peers.py {onceward | dbos} URL CASE CALLS
It makes so many calls and ends, so that the server's counters tell of nothing else.
"""

import logging
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from onceward import Claim, Once
from onceward.outbox import register
from onceward.outbox.sender import drain
from queues.boxes import RecordedTarget

CASES = ("no step", "3 steps", "3 steps, a message")
Call = Callable[[str], object]


class ChainPeer(NamedTuple):
    """The calls of each case, what waits until messages are sent, and what ends it."""

    calls: dict[str, Call]
    drain: Callable[[], object]
    close: Callable[[], object]


def charge(order: str) -> dict[str, str]:
    """Stand for an effect: it takes no time."""
    return {"id": order}


def guarded(url: str) -> ChainPeer:
    """Return the handlers of onceward."""
    once = Once(url)
    target = RecordedTarget(batch=10)
    register("bench", lambda _: target)

    @once(key="order", name="bare")
    def bare(order: str) -> str:
        return charge(order)["id"]

    @once(key="order", name="steps")
    def steps(order: str, claim: Claim) -> str:
        made = [claim.step(name, charge, order) for name in ("charge", "stock", "mail")]
        return str(made[0]["id"])

    @once(key="order", name="sends")
    def sends(order: str, claim: Claim) -> str:
        made = [claim.step(name, charge, order) for name in ("charge", "stock", "mail")]
        claim.send("bench:orders", {"order": order})
        return str(made[0]["id"])

    return ChainPeer(dict(zip(CASES, (bare, steps, sends), strict=True)), lambda: drain(60), once.close)


def dbos(url: str) -> ChainPeer:
    """Return the workflows of DBOS Transact. Its message goes to the inbox of a workflow, in the same database."""
    from dbos import DBOS, SetWorkflowID

    logging.disable(logging.WARNING)
    url = url.replace("postgresql:", "postgresql+psycopg:")
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "application_version": "1"})
    step = DBOS.step()(charge)

    @DBOS.workflow()
    def inbox() -> int:
        return 1

    @DBOS.workflow()
    def bare(order: str) -> str:
        return charge(order)["id"]

    @DBOS.workflow()
    def steps(order: str) -> str:
        made = [step(order) for _ in range(3)]
        return made[0]["id"]

    @DBOS.workflow()
    def sends(order: str) -> str:
        made = [step(order) for _ in range(3)]
        DBOS.send("inbox", {"order": order}, "orders")
        return made[0]["id"]

    def named(function: Callable[[str], str]) -> Call:
        def call(order: str) -> object:
            with SetWorkflowID(order):
                return function(order)

        return call

    DBOS.launch()
    with SetWorkflowID("inbox"):
        inbox()
    calls = dict(zip(CASES, map(named, (bare, steps, sends)), strict=True))
    return ChainPeer(calls, lambda: None, DBOS.destroy)


PEERS: dict[str, Callable[[str], ChainPeer]] = {"onceward": guarded, "DBOS Transact": dbos}


def main() -> None:
    name, url, case, calls = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    peer = PEERS[name](url)
    for _ in range(calls):
        peer.calls[case](uuid.uuid4().hex)
    peer.drain()
    peer.close()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # its threads may wait for the server

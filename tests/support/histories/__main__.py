"""``python -m histories``: runs for a time, on each store and of each kind in turn, and what the checker says of them."""

import argparse
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path

from histories.recording import PLANTS
from histories.run import GROUNDS, KINDS, REPLICATED, Asked, checker, run
from servers.orphans import begin_run


def main() -> int:
    asked = _asked()
    begin_run()
    seed = random.randrange(1_000_000) if asked.seed is None else asked.seed
    limit = time.monotonic() + asked.seconds
    keys = operations = unanswered = failed = count = 0
    with tempfile.TemporaryDirectory(prefix="onceward-checker-") as folder:
        program = checker(Path(folder))
        for store, kind in itertools.cycle(_runs(asked)):
            if time.monotonic() > limit or count == asked.runs:
                break
            faults = {"plant": asked.plant, "loss": asked.loss, "synchronous": not asked.asynchronous}
            one = Asked(store, seed + count, asked.each, kind, **faults)
            found = run(one, program)
            count, keys, operations = count + 1, keys + found.keys, operations + found.operations
            unanswered += found.unanswered
            counts = f"{found.keys} histories, {found.operations} operations, {found.unanswered} unanswered"
            says = "FOUND" if found.finding else "ok"
            print(f"{one}: {counts}, {found.told} results told: {says}\n{found.finding}", end="", flush=True)
            failed += bool(found.finding)
    print(
        f"{count} runs from seed {seed}: {keys} histories, {operations} operations, {unanswered} of them unanswered; "
        f"{failed} runs found something"
    )
    return 1 if failed else 0


def _runs(asked: argparse.Namespace) -> list[tuple[str, str]]:
    stores = [asked.store] if asked.store else sorted(GROUNDS)
    kinds = [asked.kind] if asked.kind else KINDS
    pairs = itertools.product(kinds, stores)
    return [(store, kind) for kind, store in pairs if kind != "failover" or store in REPLICATED]


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="histories", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long runs begin (default: 600)")
    parser.add_argument("--each", type=float, default=8.0, help="seconds of one run (default: 8)")
    parser.add_argument("--runs", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, help="of the first run; the next ones count up (default: at random)")
    parser.add_argument("--store", choices=sorted(GROUNDS), help="only this one")
    parser.add_argument("--kind", choices=KINDS, help="only these runs")
    parser.add_argument("--loss", type=float, default=0.02, help="share of exchanges that fail (default: 0.02)")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="a defect that must be found")
    parser.add_argument("--asynchronous", action="store_true", help="a failover to a replica that has not heard of all")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

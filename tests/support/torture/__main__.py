"""``python -m torture``: run episodes for a time, and tell what they found and how to replay it."""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from servers.dynoxide import Dynoxide
from servers.mysql import Mariadb
from servers.orphans import begin_run, die_with
from servers.postgres import Postgres
from servers.redis import Redis
from servers.shared import shared
from torture import plan as plans
from torture.episode import Episode
from torture.plants import PLANTS
from torture.rules import RULES, check

FOUND, UNTIL = 1, 3  # how an episode ends that found something, and what was looked for
MOST = 12  # findings that are told of one episode


def main() -> int:
    asked = _asked()
    begin_run()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seed = random.randrange(1_000_000) if asked.seed is None else asked.seed
    stores = plans.STORES if asked.store is None else (asked.store,)
    kinds = {"dynamodb": Dynoxide, "postgresql": Postgres, "mysql": Mariadb, "redis": Redis}
    start = (lambda kind: shared(kind, asked.servers)) if asked.servers else (lambda kind: kind())
    servers = {store: start(kinds[store]) for store in sorted(set(stores) & set(kinds))}
    limit = time.monotonic() + asked.seconds if asked.episodes is None else float("inf")
    running: dict[int, tuple[int, Path]] = {}
    begun = failed = 0
    given = {name.upper(): getattr(asked, name) for name in ("store", "shape", "plant")}
    options = " ".join(f"{name}={value}" for name, value in given.items() if value)
    try:
        while running or (time.monotonic() < limit and begun != asked.episodes):
            if len(running) < asked.jobs and time.monotonic() < limit and begun != asked.episodes:
                made = plans.plan(seed + begun, stores, asked.shape)
                folder = Path(tempfile.mkdtemp(prefix=f"torture-{made.seed}-"))
                running[_begin(made, folder, servers.get(made.store), asked)] = made.seed, folder
                begun += 1
                continue
            pid, status = os.wait()
            if pid not in running:
                continue
            which, folder = running.pop(pid)
            if status:
                failed += 1
                if status == UNTIL << 8:
                    limit = 0.0
                replay = f"make torture SEED={which} EPISODES=1 {options}"
                print(f"  replay: {replay}\n  journal: {folder}/journal", flush=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        for server in () if asked.servers else servers.values():
            server.stop()
    print(f"{begun} episodes from seed {seed}, {failed} of them found something")
    return 1 if failed else 0


def _begin(made: plans.Plan, folder: Path, server: object, asked: argparse.Namespace) -> int:
    """Run an episode in a process of its own; it does not end with 0 when something was found."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 2
    try:
        die_with(parent)
        os.setpgid(0, 0)
        began = time.monotonic()
        facts = Episode(made, folder, server, asked.plant).run()
        found = check(facts)
        took = time.monotonic() - began
        told = "".join(f"\n  {sentence}" for sentence in found[:MOST])
        print(f"{made}, {len(facts.calls)} calls, {took:.1f} s: {'FOUND' if found else 'ok'}{told}", flush=True)
        is_met = asked.until and any(one.startswith(asked.until) for one in found)
        code = UNTIL if is_met else FOUND if found else 0
    except BaseException:
        import traceback

        print(f"{made}: {traceback.format_exc()}", flush=True)
    finally:
        os._exit(code)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for how long episodes begin (default: an hour)")
    parser.add_argument("--seed", type=int, help="of the first episode; the next ones count up (default: at random)")
    parser.add_argument("--episodes", type=int, help="run so many instead; 1 replays a seed")
    parser.add_argument("--jobs", type=int, default=3, help="episodes side by side; most of their time is waiting")
    parser.add_argument("--store", choices=sorted(plans.SHAPES), help="only this one")
    parser.add_argument("--shape", choices=sorted(set().union(*plans.SHAPES.values())), help="only this")
    parser.add_argument("--servers", type=Path, help="the folder of a run of the tests, whose servers are used")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="a bug that must be found")
    parser.add_argument("--until", choices=[rule.__name__ for rule in RULES], help="end when this rule is broken")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

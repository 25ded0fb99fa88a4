"""An actor whose wall clock is wrong, which takes a process that was started so: ``python -m torture.skewed ...``."""

import select
import sys
import time
from pathlib import Path

from torture import actor
from torture.plan import plan

# time.sleep() asks for an absolute time, which libfaketime at times turns into one that the kernel refuses.
time.sleep = lambda seconds: select.select((), (), (), seconds) and None

seed, store, shape, number, folder, url, plant = sys.argv[1:]
actor.run(plan(int(seed), (store,), shape), int(number), Path(folder), url, plant or None)

"""An actor whose wall clock is wrong, which takes a process that was started so: ``python -m torture.skewed ...``."""

import pickle
import select
import sys
import time
from pathlib import Path

from torture import actor

# time.sleep() asks for an absolute time, which libfaketime at times turns into one that the kernel refuses.
time.sleep = lambda seconds: select.select((), (), (), seconds) and None

number, folder, url, plant = sys.argv[1:]
actor.run(pickle.loads((Path(folder) / "plan").read_bytes()), int(number), Path(folder), url, plant or None)

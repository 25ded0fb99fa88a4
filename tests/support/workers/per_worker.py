"""What the processes of test_per.py run: ``python per_worker.py URL LOG OFFSET``."""

import sys
import time

from onceward import Once
from servers.wrong_clocks import mend_sleep


def main(url, log, offset):
    mend_sleep()
    once = Once(url)
    print(time.time())

    @once.per("1h", "report", offset=float(offset))
    def report():
        with open(log, "a") as file:
            file.write("run\n")
        return "done"

    print(report(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

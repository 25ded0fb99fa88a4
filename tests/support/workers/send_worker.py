"""What the processes of test_send.py run: ``python send_worker.py LEDGER QUEUE WHAT``."""

import os
import signal
import sys

from onceward import Once, aws
from onceward.aws.sqs.queue import Queue


def main(ledger, url, what):
    once = Once(ledger, lease=1.0, on_busy=30.0)
    queue = Queue(url)
    if what == "kill":
        send = queue.send

        def send_and_die(*args, **kwargs):
            send(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        queue.send = send_and_die
    print(aws.send(once, queue, {"id": 1}, key="report"), flush=True)
    queue.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

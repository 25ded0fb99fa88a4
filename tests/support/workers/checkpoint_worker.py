"""What the processes of test_checkpoint.py run: ``python checkpoint_worker.py LEDGER LOG MOMENT LEASE``."""

import sys

from onceward import LeaseLost, Once


def say(word):
    print(word, flush=True)


def main(ledger, log, moment, lease):
    once = Once(f"sqlite:///{ledger}", lease=float(lease))

    def write(items):
        with open(log, "a") as file:
            file.writelines(f"{item['id']}\n" for item in items)
        if moment == "flushed":
            say("flushed")
            sys.stdin.readline()

    with once.checkpoint(write, key="item.id", name="sink") as checkpoint:
        for number in range(4):
            answer = checkpoint.add({"id": number})
            if moment == "never":
                say(answer)
        if moment == "buffered":
            say("buffered")
            sys.stdin.readline()
    say("done")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LeaseLost:
        say("LeaseLost")

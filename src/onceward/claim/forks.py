"""A number that changes in a forked child. Reading it costs no system call."""

import os

generation = 0  # how many forks lie between the first process and this one


def _forked() -> None:
    global generation  # each process has its own
    generation += 1


if hasattr(os, "register_at_fork"):
    for _ in range(3):  # an interrupt can end a hook, and Python drops it: run it again
        os.register_at_fork(after_in_child=_forked)

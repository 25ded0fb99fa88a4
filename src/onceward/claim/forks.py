"""Which process this is: a number that changes in a forked child, and costs no system call to read."""

import os

generation = 0  # grows with every fork between the first process and this one


def _forked() -> None:
    global generation  # it is this process's own
    generation += 1


if hasattr(os, "register_at_fork"):
    for _ in range(3):  # Python drops an interrupt that ends a hook
        os.register_at_fork(after_in_child=_forked)

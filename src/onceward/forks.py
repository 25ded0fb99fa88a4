"""Which process this is: a number that changes in a forked child, and costs no system call to read."""

import os

generation = 0  # forks between the first process and this one


def _forked() -> None:
    global generation  # noqa: PLW0603 - it is this process's own
    generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

"""What several tests need from the machine."""

import os
import shutil

import pytest


def needs(command: str, how: str) -> str:
    """Return the path of ``command``. Without it the test fails in CI, and elsewhere is skipped, saying how to get it."""
    path = shutil.which(command)
    if path is None:
        message = f"{command} is not installed: {how}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture
def faketime() -> str:
    """The path of Debian's faketime, which gives a process a wrong clock."""
    return needs("faketime", "apt-get install faketime")

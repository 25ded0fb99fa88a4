"""The ledger of the shops on FastStream."""

import pytest

from onceward import Once


@pytest.fixture
def once(tmp_path):
    made = Once(f"sqlite:///{tmp_path}/ledger.db", lease=30)
    yield made
    made.close()

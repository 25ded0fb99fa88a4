"""What the tests of SQLite ledgers share; a file that needs another one overrides it."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"

"""The ledger of the shops on FastStream."""

from fixtures import closing_fixture
from onceward import Once

once = closing_fixture(lambda tmp_path: Once(f"sqlite:///{tmp_path}/ledger.db", lease=30))

"""An effect in the ledger's own MariaDB commits together with its record: both, or neither."""

import pytest

from stores.transaction_cases import *  # noqa: F403 - its tests run here

pytestmark = pytest.mark.sampled(hand=2)

"""An effect in the ledger's own MariaDB commits together with its record: both, or neither."""

import pytest

from onceward import OncewardError
from stores.transaction_cases import *  # noqa: F403 - its tests run here
from stores.transaction_cases import run

pytestmark = pytest.mark.sampled(hand=2)


@run
async def test_a_body_that_takes_its_record_away_commits_nothing(once, hand, effects):
    async with hand.connection() as connection:
        with pytest.raises(OncewardError, match="committed or rolled back"):
            async with hand.within(once.transaction("k", connection)):
                await hand.act(connection)
                await hand.sql(connection, "DELETE FROM onceward")
        assert hand.is_idle(connection)
    assert (effects(), [state for state, _ in hand.status(once)]) == ([], ["PARKED"])

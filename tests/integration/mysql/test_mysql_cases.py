"""Lost replies, steps and messages around transactions in MariaDB: the same cases as in PostgreSQL."""

import pytest

from stores.lost_cases import *  # noqa: F403 - its tests run here
from stores.mysql_hands import HANDS
from stores.outbox_cases import *  # noqa: F403 - as above
from stores.step_cases import *  # noqa: F403 - as above

pytestmark = pytest.mark.sampled(hand=1)


@pytest.fixture(params=["pymysql", "asyncmy", "Session", "AsyncSession", "Django"])
def hand(request, database):
    """One of each logic: the others differ in how they begin, which the cases of transactions see."""
    return HANDS[request.param](database, "effects")

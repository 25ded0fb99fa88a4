"""Transactions in MariaDB: the same cases as in PostgreSQL."""

import pytest

from stores.cut_cases import *  # noqa: F403 - its tests run here
from stores.lost_cases import *  # noqa: F403 - as above
from stores.mysql_hands import HANDS
from stores.transaction_cases import *  # noqa: F403 - as above

pytestmark = pytest.mark.sampled(hand=2, waiting=1, blocking=1)


@pytest.fixture(params=[name for name, kind in HANDS.items() if kind.awaited])
def waiting(request, database):
    return HANDS[request.param](database, "effects")


@pytest.fixture(params=["pymysql", "Session", "Django"])
def blocking(request, database):
    return HANDS[request.param](database, "effects")

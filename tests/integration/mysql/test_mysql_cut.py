"""Transactions in MariaDB that are cancelled, interrupted or left behind: the same cases as in PostgreSQL."""

import pytest

from stores.cut_cases import *  # noqa: F403 - its tests run here
from stores.mysql_hands import HANDS

pytestmark = pytest.mark.sampled(waiting=1, blocking=1)


@pytest.fixture(params=[name for name, kind in HANDS.items() if kind.awaited])
def waiting(request, database):
    return HANDS[request.param](database, "effects")


@pytest.fixture(params=["pymysql", "Session", "Django"])
def blocking(request, database):
    return HANDS[request.param](database, "effects")

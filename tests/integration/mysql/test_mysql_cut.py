"""Transactions in MariaDB that are cancelled, interrupted or left behind: the same cases as in PostgreSQL."""

import pytest

from cut_cases import *  # noqa: F403 - its tests run here
from mysql_hands import HANDS


@pytest.fixture(params=[name for name, kind in HANDS.items() if kind.awaited])
def waiting(request, database):
    return HANDS[request.param](database, "effects")


@pytest.fixture(params=["pymysql", "Session", "Django"])
def blocking(request, database):
    return HANDS[request.param](database, "effects")

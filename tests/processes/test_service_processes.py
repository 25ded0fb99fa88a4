"""Services, clients and a ledger that die or have wrong clocks, on a PostgreSQL server."""

import pytest

from servers.postgres import Postgres
from waiting import until
from web.services import PATIENCE, new_id, serving


@pytest.fixture
def ledger(postgres15, tmp_path):
    schema = f"service_{new_id()}"
    postgres15.sql(f"CREATE SCHEMA {schema}", database="test")
    return f"{postgres15.url}?schema={schema}"


@pytest.mark.nightly
def test_clocks_that_are_an_hour_off_change_nothing(ledger, faketime):
    with serving(ledger) as right, serving(ledger, under=faketime("+1h")) as ahead:
        with serving(ledger, under=faketime("-1h")) as behind:
            apis = [one.api for one in (right, ahead, behind)]
            for number, winner in enumerate(apis):
                key = f"k{number}"
                claim = winner.claimed(key, lease=30)
                others = [api for api in apis if api is not winner]
                assert [api("claim", key=key, id=new_id()).problem for api in others] == ["busy", "busy"]
                answers = [api("extend", **claim, lease=30) for api in apis]
                assert all(25 < answer.body["lease"] <= 31 + PATIENCE for answer in answers)
                assert others[0]("complete", **claim, result=number).status == 200
                assert [api("claim", key=key, id=new_id()).body["result"] for api in apis] == [number] * 3


def test_a_ledger_that_dies_in_the_middle_is_waited_for():
    server = Postgres()
    try:
        with serving(f"{server.url}") as service:
            api = service.api
            claim = api.claimed("k", lease=600)
            server.crash()
            away = api("extend", **claim)
            assert (away.status, away.problem) == (503, "unready")
            assert away.headers["retry-after"] == "1"
            refused = api("complete", **claim, result=[7])
            assert (refused.status, refused.problem) == (503, "unready")
            assert api.send("GET", "/healthz").status == 503
            server.start()
            until(lambda: api("complete", **claim, result=[7]).status == 200)
            assert api("claim", key="k", id=new_id()).body["result"] == [7]
            assert until(lambda: api.send("GET", "/healthz").status == 200)
    finally:
        server.stop()

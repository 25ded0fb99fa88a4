"""A service whose ledger dies, on a PostgreSQL server."""

from servers.postgres import Postgres
from waiting import until
from web.services import new_id, serving


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

"""The service's promises about repeated and late requests, on each kind of ledger."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tables import each
from web.services import PATIENCE, Api, new_id, serving

pytestmark = pytest.mark.sampled(instances=1)


@pytest.fixture(scope="module", params=["sqlite", "mysql", "dynamodb"])
def instances(request, tmp_path_factory):
    """Two instances that share a ledger of this kind."""
    patch = pytest.MonkeyPatch()
    url = _ledger(request, tmp_path_factory, patch)
    with serving(url) as one, serving(url) as other:
        yield one, other
    patch.undo()


def _ledger(request, folders, patch):
    match request.param:
        case "sqlite":
            return f"sqlite:///{folders.mktemp('ledger')}/ledger.db?timeout=60"
        case "mysql":
            return request.getfixturevalue("mariadb").database(f"service_{uuid.uuid4().hex}")
        case _:
            patch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
            patch.setenv("AWS_REGION", "eu-west-1")
            server, table = request.getfixturevalue("dynoxide"), f"service-{uuid.uuid4().hex}"
            server.table(table)
            return f"dynamodb://{table}?endpoint={server.url}"


@pytest.fixture
def apis(instances):
    name = f"shop.{uuid.uuid4().hex}"
    return [Api(one.place, name) for one in instances]


def test_a_repeated_claim_is_the_same_claim(apis):
    one, other = apis
    claim = {"key": "k", "id": new_id(), "lease": 600}
    answers = [api("claim", **claim) for api in (one, other, one)]
    assert {(a.status, a.body["fence"], a.body["attempt"]) for a in answers} == {(201, answers[0].body["fence"], 1)}
    assert answers[2].body["lease"] <= answers[0].body["lease"] + 1


@pytest.mark.parametrize(("action", "more"), [("complete", {"result": 1}), ("release", {}), ("park", {})])
def test_an_ended_id_wins_nothing(apis, action, more):
    one, other = apis
    claim = one.claimed("k", lease=600)
    assert [api(action, **claim, **more).status for api in apis] == [200, 200]
    for api in apis:
        late = api("claim", key="k", id=claim["id"])
        assert (late.status, late.problem) == (422, "id-used")
        refused = [api("extend", **claim), api("step", **claim, step="s"), api("step", **claim, step="s", result=1)]
        assert [answer.status for answer in refused] == [410] * 3
    assert other("look", key="k").body["attempt"] == 1


def test_a_lapsed_id_wins_nothing(apis):
    one, other = apis
    claim = {"key": "k", "id": new_id(), "lease": 3}
    won = one("claim", **claim)
    end = time.monotonic() + PATIENCE
    for api in apis:
        while (answer := api("claim", **claim)).status != 422:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert answer.problem == "id-used"
    following = other("claim", key="k", id=new_id(), wait=PATIENCE).body
    assert following["attempt"] == 2
    assert following["fence"] > won.body["fence"]


def test_a_zombie_writes_nothing(apis):
    one, other = apis
    old = one.claimed("k", lease=3)
    new = other.claimed("k", lease=600, wait=PATIENCE)
    assert new["fence"] > old["fence"]
    actions = [("extend", {}), ("step", {"step": "s"}), ("step", {"step": "s", "result": 1}), ("complete", {"result": 1}),
        ("release", {}), ("park", {})]  # fmt: skip
    assert [one(action, **old, **more).problem for action, more in actions] == ["lost"] * len(actions)
    assert one("look", key="k").body["steps"] == []
    assert other("complete", **new, result=2).status == 200
    assert [one(action, **old, **more).problem for action, more in actions] == ["lost"] * len(actions)
    assert one("claim", key="k", id=new_id()).body["result"] == 2


def test_an_old_id_can_win_again_with_a_larger_fence(apis):
    one, other = apis
    first = one.claimed("k")
    one("release", **first)
    second = other.claimed("k")
    other("release", **second)
    again = one("claim", key="k", id=first["id"])
    assert again.status == 201
    assert again.body["fence"] > second["fence"]
    assert one("complete", **first, result=1).problem == "lost"


def test_a_step_and_a_result_stay_as_they_were_first(apis):
    claim = apis[0].claimed("k", lease=600)
    assert [api("step", **claim, step="p", on_lapse="park").status for api in apis] == [200, 200]  # a lost reply
    assert [api("step", **claim, step="s", result=[1.10, 2**70]).status for api in apis] == [200, 200]
    assert apis[1]("step", **claim, step="s", result=[1]).problem == "other-result"
    assert apis[1]("complete", **claim, result={"a": 2**70}).status == 200
    for api in apis:
        assert api("complete", **claim, result={"a": 2**70}).status == 200
        assert api("complete", **claim, result={"a": 1}).problem == "other-result"
        assert api("claim", key="k", id=new_id()).body["result"] == {"a": 2**70}


def test_of_results_at_the_same_time_one_is_recorded(apis):
    with ThreadPoolExecutor(4) as pool:
        for number in range(5):
            claim = apis[0].claimed(number, lease=600)
            tries = [pool.submit(apis[i % 2], "complete", **claim, result=i) for i in range(4)]
            answers = [one.result() for one in tries]
            recorded = apis[0]("claim", key=number, id=new_id()).body["result"]
            assert [i for i, answer in enumerate(answers) if answer.status == 200] == [recorded]
            assert [answer.problem for answer in answers if answer.status != 200] == ["other-result"] * 3


@each("text", ["\0", "a\0b", "\U0001f600" * 90, "\x7f\x1b[31m", "\ufffe"])
def test_any_text_can_be_recorded(apis, text):
    claim = {"key": ["k", text], "id": new_id(), "worker": text, "max_attempts": 2**31 - 1}
    won = apis[0]("claim", **claim)
    assert won.status == 201, won
    held = {"key": claim["key"], "id": claim["id"], "fence": won.body["fence"]}
    assert apis[0]("step", **held, step=text, result=text).status == 200
    assert apis[0]("release", **held, error=text).status == 200
    held = apis[1].claimed(claim["key"])
    assert apis[1]("complete", **held, no_result=text).status == 200
    assert apis[0]("look", key=claim["key"]).status == 200
    assert apis[0]("claim", key=claim["key"], id=new_id()).problem == "result-unavailable"

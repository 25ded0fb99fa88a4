"""The service in a process of its own, asked over plain HTTP; and its promises about repeated and late requests on each kind of ledger."""

import contextlib
import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.protocol import parked_message
from tables import each
from waiting import until
from web.services import PATIENCE, Api, new_id, serving

pytestmark = pytest.mark.sampled(instances=1)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db?timeout=30") as made:
        yield made


@pytest.fixture
def api(service):
    """A namespace of its own."""
    return Api(service.place, f"shop.{uuid.uuid4().hex}")


@each("result", [None, -0.0, 2**70, "\0é", {"$onceward": 1, "value": {"$tuple": [1]}}, {"$onceward": 1, "raised": {}}])
def test_a_replay_is_exactly_what_was_recorded(api, result):
    claim = api.claimed(key := repr(result))
    sent = {"result": result}
    steps = [api("step", **claim, step="s", **more).body["result"] for more in (sent, sent, {})]
    assert [repr(step) for step in steps] == [repr(result)] * 3
    assert api("complete", **claim, result=result).body == {"outcome": "completed", "replayable": True}
    again = api("claim", key=key, id=new_id())
    assert (again.status, again.body["outcome"], repr(again.body["result"])) == (200, "completed", repr(result))


@pytest.mark.parametrize("retention", [5000.0, None])
def test_a_key_that_waits_for_a_person_when_it_lapses_is_kept_as_long_as_its_client_says(service, api, retention):
    claim = api.claimed("k", on_lapse="park", retention=retention)
    with contextlib.closing(Once(service.url, name=api.namespace)) as once:
        assert api("extend", **claim, lease=60).status == 200
        record, now = once.ledger.show(f"{api.namespace}:k")
        assert record.expires_at is None or record.expires_at > now + 1e10
        api("complete", **claim, result=1)
        record, _ = once.ledger.show(f"{api.namespace}:k")
        assert record.expires_at == (None if retention is None else pytest.approx(record.lease_until + retention))


def test_a_python_worker_and_a_client_share_a_namespace_and_its_derived_keys(service, api):
    claim = api.claimed(["a", 1], derive=["refund"])
    answer = api("extend", **claim, derive=["refund", "mail"])
    assert answer.body["keys"].keys() == {"refund", "mail"}
    api("release", **claim)
    with contextlib.closing(Once(service.url, name=api.namespace)) as once:
        with once.claim(("a", 1)) as held:
            assert held.key("refund") == answer.body["keys"]["refund"]
            held.complete({"by": "python"})
        assert api("claim", key=["a", 1], id=new_id()).body["result"] == {"by": "python"}
        claim = api.claimed("b")
        api("complete", **claim, result={"receipt": 7})
        assert once.run("b", dict) == {"receipt": 7}
        assert once.ledger.show(f"{api.namespace}:b")[0].owner == claim["id"]


def test_a_busy_key_says_when_to_come_again(api):
    api.claimed("k", lease=30)
    busy = api("claim", key="k", id=new_id())
    assert (busy.status, busy.problem) == (409, "busy")
    assert 1 <= int(busy.headers["retry-after"]) <= 5
    assert busy.headers["content-type"] == "application/problem+json"


def test_another_input_under_one_key_is_refused(api):
    claim = api.claimed("k", input={"amount": 1, "to": "a"})
    api("complete", **claim, result=1)
    assert api("claim", key="k", id=new_id(), input={"to": "a", "amount": 1}).status == 200
    other = api("claim", key="k", id=new_id(), input={"amount": 2, "to": "a"})
    assert (other.status, other.problem) == (422, "mismatch")
    assert api("claim", key="k", id=new_id(), input=None).problem == "mismatch"
    assert api("claim", key="k", id=new_id()).status == 200
    held = {"key": "l", "id": new_id()}
    assert api("claim", **held, input=1).status == api("claim", **held, input=1).status == 201
    assert api("claim", **held, input=2).problem == "mismatch"


def test_two_inputs_that_a_float_would_round_to_one_are_two(api):
    for first, other in ("100000000000000000.25", "100000000000000000.75"), ("1e400", "2e400"), ("1e-400", "0.0"):
        answers = []
        for number in first, first, other:
            body = f'{{"key":"{first}","id":"{new_id()}","input":{{"amount":{number}}}}}'.encode()
            answers.append(api.send("POST", "/v1/shop/claim", body, **{"Content-Type": "application/json"}))
        assert answers[0].status == 201
        assert [answer.problem for answer in answers[1:]] == ["busy", "mismatch"]


def test_steps_are_made_once_over_attempts_and_a_later_one_gets_their_results(api):
    first, large = api.claimed("k"), "x" * 20_000
    begun = api("step", **first, step="mail").body
    assert begun["made"] is False
    made = api("step", **first, step="mail", result={"sent": True}).body
    assert (made["made"], made["key"]) == (True, begun["key"])
    assert api("step", **first, step="large", result=large).body["made"] is True
    assert api("step", **first, step="none", result=None).body["made"] is True
    api("release", **first)
    second = api("claim", key="k", id=(again := new_id())).body
    assert second["steps"] == api("look", key="k").body["steps"] == ["mail", "large", "none"]
    asked = {"key": "k", "id": again, "fence": second["fence"]}
    told = [api("step", **asked, step=name).body["result"] for name in second["steps"]]
    assert told == [{"sent": True}, large, None]


def test_a_step_that_an_attempt_ended_in_parks_on_demand_and_begins_in_no_lapsed_lease(api, service):
    first = api.claimed("k", lease=0.3)
    assert api("step", **first, step="pay", on_lapse="park", lease=0.3).body["made"] is False
    until(lambda: api("look", key="k").body["lease"] == 0)
    assert api("step", **first, step="mail").problem == "lost"
    second = api.claimed("k")
    parked = api("step", **second, step="pay", on_lapse="park")
    assert (parked.status, parked.problem) == (423, "parked")
    assert "pay" in parked.body["detail"]
    assert api("look", key="k").body["status"] == "PARKED"
    with contextlib.closing(Once(service.url)) as once:
        once.ledger.unpark(f"{api.namespace}:k")  # attempts count anew, and nobody has said what became of the step
        drive(once.store.insert(parked_message(f"{api.namespace}:kept", new_id(), "{}", "why")), once.store)
    assert "result" not in api("look", key="kept").body
    third = api.claimed("k")
    assert api("step", **third, step="pay", on_lapse="park").status == 423


@each("sent", [{"result": "x" * 300_000}, {"no_result": "it is a film"}])
def test_a_step_that_was_recorded_without_its_result_parks_a_later_attempt(api, sent):
    first = api.claimed(key := repr(sent)[:20])
    answers = [api("step", **first, step="film", **sent).body for _ in range(2)]
    assert [(one["made"], one.get("result")) for one in answers] == [(True, sent.get("result"))] * 2
    api("release", **first)
    second = api.claimed(key)
    assert [api("step", **second, step="film").problem for _ in range(2)] == ["parked"] * 2
    assert api("look", key=key).body["status"] == "PARKED"


def test_a_completion_without_a_result_says_why(api):
    claim = api.claimed("k")
    ended = {"outcome": "completed", "replayable": False, "why": "it is a film"}
    assert [api("complete", **claim, no_result="it is a film").body for _ in range(2)] == [ended] * 2
    again = api("claim", key="k", id=new_id())
    assert (again.status, again.problem) == (409, "result-unavailable")
    assert "it is a film" in again.body["detail"]
    assert "retry-after" not in again.headers
    claim = api.claimed("large")  # and one that the ledger does not take
    ended = [api("complete", **claim, result="x" * 300_000).body for _ in range(2)]
    assert [one["replayable"] for one in ended] == [False, False]
    assert "300002 bytes" in ended[0]["why"]


def test_the_lease_counts_from_before_the_request(api):
    """A client that waited for the key must not subtract its wait from the lease."""
    first = api.claimed("k")
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(api("claim", key="k", id=new_id(), wait=50, lease=20)))
    sent = time.monotonic()
    waiting.start()
    time.sleep(1)
    api("release", **first)
    waiting.join(PATIENCE)
    claimed = answers[0]
    assert claimed.status == 201
    came = time.monotonic()
    assert claimed.body["lease"] > 20.2  # the second that it waited is on top
    assert sent + claimed.body["lease"] <= came + 20


@each(("action", "more"), [("step", {"step": "s"}), ("extend", {})])
def test_a_request_with_a_shorter_lease_does_not_lengthen_the_belief(api, action, more):
    claim = api.claimed(action, lease=3000)
    assert api(action, **claim, lease=1, **more).body["lease"] <= 3000


def test_a_client_that_has_gone_gets_no_claim(api):
    first = api.claimed("k")
    connection = api.connection()
    body = json.dumps({"key": "k", "id": new_id(), "wait": 50})
    connection.request("POST", f"/v1/{api.namespace}/claim", body, {"Content-Type": "application/json"})
    time.sleep(0.5)
    connection.close()
    time.sleep(0.5)
    api("release", **first)
    assert api("claim", key="k", id=new_id(), wait=5).body["attempt"] == 2


BAD = {
    "no JSON": (b"{", 400, "malformed"),
    "no UTF-8": (b'{"key":"\xff","id":"%s"}' % (b"0" * 32), 400, "malformed"),
    "deep": (b'{"key":"k","id":"%s","input":%s}' % (b"0" * 32, b"[" * 5000 + b"]" * 5000), 400, "malformed"),
    "a host's name as id": (b'{"key":"k","id":"web-1"}', 400, "malformed"),
    "an id with a line break": (b'{"key":"k","id":"%s\\n"}' % (b"0" * 32), 400, "malformed"),
    "an empty key": (b'{"key":"","id":"%s"}' % (b"0" * 32), 400, "malformed"),
    "an empty list": (b'{"key":[],"id":"%s"}' % (b"0" * 32), 400, "malformed"),
    "an unknown field": (b'{"key":"k","id":"%s","leese":1}' % (b"0" * 32), 400, "malformed"),
    "a lease that is too long": (b'{"key":"k","id":"%s","lease":3601}' % (b"0" * 32), 400, "malformed"),
    "a negative wait": (b'{"key":"k","id":"%s","wait":-1}' % (b"0" * 32), 400, "malformed"),
    "no attempts": (b'{"key":"k","id":"%s","max_attempts":0}' % (b"0" * 32), 400, "malformed"),
    "too much": (b'{"key":"k","id":"%s","input":"%s"}' % (b"0" * 32, b"x" * 1024 * 1024), 413, "too-large"),
}


@each("body", BAD)
def test_a_bad_body_is_refused(api, body):
    data, status, word = BAD[body]
    refused = api.send("POST", f"/v1/{api.namespace}/claim", data, **{"Content-Type": "application/json"})
    assert (refused.status, refused.problem) == (status, word)
    assert api("look", key="k").status == 404


def test_bad_addresses_and_kinds_are_refused(api):
    json_type = {"Content-Type": "application/json"}
    assert api.send("GET", "/v1/shop/claim").status == 405
    assert api.send("POST", "/v1/shop/steal", b"{}", **json_type).problem == "not-found"
    assert api.send("POST", "/v1/a:b/look", b'{"key":"k"}', **json_type).problem == "malformed"
    form = api.send("POST", "/v1/shop/claim", b"{}", **{"Content-Type": "text/plain"})
    assert (form.status, form.problem) == (415, "not-json")
    from_a_page = api.send("POST", "/v1/shop/look", b'{"key":"k"}', **json_type, Host="evil.example")
    assert (from_a_page.status, from_a_page.problem) == (421, "wrong-host")


def test_the_log_has_requests_and_no_keys(service, api):
    claim = api.claimed("secret-key", input="secret-input")
    api("complete", **claim, result="secret-result")
    until(lambda: any(f"/v1/{api.namespace}/complete 200" in line for line in service.said))
    told = "".join(service.said)
    assert "secret" not in told
    assert claim["id"] not in told


def test_one_that_waits_is_answered_when_the_service_stops(service, api):
    with serving(service.url) as stopping:
        api.claimed("k")
        there, answers = Api(stopping.place, api.namespace), []
        waiting = threading.Thread(target=lambda: answers.append(there("claim", key="k", id=new_id(), wait=50)))
        waiting.start()
        until(lambda: there("look", key="k").status == 200)
        time.sleep(0.5)
        assert stopping.stop() == 0
        waiting.join(PATIENCE)
        assert (answers[0].status, answers[0].problem) == (409, "busy")


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

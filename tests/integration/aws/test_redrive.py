"""Dead letters moved back: what the ledger says of each, and that a kill at any point neither loses nor doubles one."""

import itertools
import json
import signal
import threading
import time

import pytest

from commands.command_line import Cli
from onceward import Once
from onceward.aws import on_sqs
from onceward.aws.dead_letters import redrive as module
from onceward.aws.dead_letters.letters import Letters, Refusal, origin
from onceward.aws.dead_letters.redrive import Redrive
from onceward.aws.sqs.broker import record_of
from onceward.aws.sqs.message import Attribute, Message
from onceward.aws.sqs.queue import Queue, QueueError
from onceward.consumers.redriving import planned
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.errors import Parked, StoreError
from onceward.testing.bench import claim_of
from servers.needs import numbers
from servers.proxy import Fault, Proxy, Refuse
from tables import each
from waiting import until

pytestmark = pytest.mark.sampled(at_once=1)

_NUMBERS = numbers()
KEYED = {"onceward-key": {"DataType": "String", "StringValue": "first"}}


class Scene:
    """A dead-letter queue, the queue it belongs to, and the ledger of that queue's consumer."""

    def __init__(self, ministack, url, suffix=""):
        number = next(_NUMBERS)
        self.aws = ministack
        self.dlq = ministack.queue(f"redrive-{number}-dlq{suffix}")
        self.target = ministack.queue(f"redrive-{number}{suffix}", self.dlq, VisibilityTimeout=30)
        self.url = url
        self.once = Once(url, name="shop")
        self.effects = []

    def dead(self, body="{}", attributes=None, **more):
        """Put a message in the dead-letter queue; return its id."""
        text = body if isinstance(body, str) else json.dumps(body)
        more |= {} if attributes is None else {"MessageAttributes": attributes}
        return self.aws.ask("AmazonSQS.SendMessage", QueueUrl=self.dlq, MessageBody=text, **more)["MessageId"]

    def redrive(self, endpoint=None, **options):
        options = {"name": "shop", **options}
        return Redrive(Once(self.once.store), Queue(self.dlq), Queue(self.target, endpoint=endpoint), **options)

    def run(self, **options):
        return list(self.redrive(**options).run())

    def park(self, key):
        claim = self.once.acquire(key)
        claim.park("card declined")

    def complete(self, key):
        self.once.run(key, self.effects.append, key)

    def record(self, key):
        return self.once.ledger.show(f"shop:{key}")[0]

    def consume(self):
        """Handle what is in the target, each key once, as a consumer with the default key does."""
        queue = Queue(self.target)
        while messages := queue.receive(wait=0):
            for message in messages:
                self.once.run(origin(message), self.effects.append, origin(message))
                queue.delete_many([message.receipt])
        queue.close()

    def there(self, url=None):
        """The messages that can be received from the dead-letter queue now, by their ids."""
        return {message["MessageId"]: message for message in self.aws.messages(url or self.dlq)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "WAIT", 0)  # the server is one, and answers at once whether it has any


@pytest.fixture
def scene(ministack, aws, tmp_path):
    made = Scene(ministack, f"sqlite:///{tmp_path}/ledger.db")
    yield made
    made.once.close()


def outcomes(fates):
    return [fate.outcome for fate in fates]


# --- what the ledger says -------------------------------------------------------------------------------------------


def test_a_message_without_a_record_is_moved_unchanged_under_its_first_id(scene):
    attributes = {
        "n": {"DataType": "Number.int", "StringValue": "1"},
        "b": {"DataType": "Binary", "BinaryValue": "/w=="},
    }
    first = scene.dead("not JSON é", attributes, MessageGroupId="fair")
    assert outcomes(scene.run()) == ["moved"]
    assert scene.aws.left(scene.dlq) == 0
    ((new, copy),) = scene.there(scene.target).items()
    assert new != first
    assert copy["Body"] == "not JSON é"
    assert copy["MessageAttributes"].pop("onceward-key")["StringValue"] == first
    told = {
        name: (one["DataType"], one.get("StringValue") or one.get("BinaryValue"))
        for name, one in copy["MessageAttributes"].items()
    }
    assert told == {"n": ("Number.int", "1"), "b": ("Binary", "/w==")}
    assert copy["Attributes"]["MessageGroupId"] == "fair"


def test_a_key_whose_effect_may_be_made_waits_for_a_person(scene):
    first = scene.dead()
    scene.once.acquire(first, lease=0.05)
    time.sleep(0.1)
    with pytest.raises(Parked):
        scene.once.acquire(first, on_lapse="park")
    (fate,) = scene.run()
    assert (fate.outcome, fate.waits, scene.record(first).status) == ("refused", True, PARKED)
    assert "ask the downstream" in fate.reason
    assert outcomes(scene.run(in_doubt="rerun")) == ["moved"]
    scene.consume()
    assert scene.effects == [first]


def test_attempts_of_a_released_key_and_of_a_lapsed_one_are_given_back(scene):
    released, lapsed = scene.dead(), scene.dead()
    scene.once.acquire(released).release("timeout")
    scene.once.acquire(lapsed, lease=0.05)
    time.sleep(0.1)
    assert outcomes(scene.run()) == ["moved", "moved"]
    assert [scene.record(key).attempts for key in (released, lapsed)] == [0, 0]
    assert scene.record(released).error == "timeout"
    scene.consume()
    assert sorted(scene.effects) == sorted([released, lapsed])


def test_a_message_without_a_key_stays(scene):
    first = scene.dead({"order": {}})
    (fate,) = scene.run(key="body.order.id")
    assert (fate.outcome, list(scene.there())) == ("refused", [first])
    assert "its key cannot be read" in fate.reason


def test_a_message_in_an_envelope_of_sns_has_the_key_that_is_in_there(scene):
    scene.dead({"Type": "Notification", "MessageId": "from-sns", "Message": json.dumps({"id": "a"})})
    scene.park("from-sns")
    (fate,) = scene.run(unwrap="sns", where="body.id == 'a'")
    assert (fate.outcome, fate.key) == ("moved", "shop:from-sns")


def test_a_message_with_ten_attributes_stays_unless_its_key_is_in_body(scene):
    ten = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(10)}
    first = scene.dead({"id": 7}, ten)
    scene.park(first)
    (fate,) = scene.run()
    assert fate.outcome == "refused"
    assert "it has 10 attributes, and SQS takes no more" in fate.reason
    assert scene.record(first).status == PARKED
    assert outcomes(scene.run(key="body.id")) == ["moved"]
    assert len(next(iter(scene.there(scene.target).values()))["MessageAttributes"]) == 10


def test_a_poison_message_that_was_given_up_is_redriven_and_handled_once(scene):
    fixed, runs = False, []

    @on_sqs(scene.once, max_attempts=2)
    def charge(order):
        runs.append(order)
        if not fixed:
            raise ValueError("no such card")

    queue = Queue(scene.target)

    def deliver():
        messages = queue.receive(wait=0, visibility=30)
        failed = charge({"Records": [record_of(message, queue.attributes()["QueueArn"]) for message in messages]})
        for message in messages:
            queue.change_many([(message.receipt, 0)])
        return [message.id for message in messages], failed["batchItemFailures"]

    first = scene.aws.send(scene.target, {"id": 7})
    for _ in range(3):
        assert deliver() == ([first], [{"itemIdentifier": first}])
    assert deliver() == ([], [])
    assert list(scene.there()) == [first]
    fixed = True
    (fate,) = scene.run()
    assert (fate.key, fate.record.status, fate.record.attempts) == (f"shop:{first}", PARKED, 2)
    for _ in range(2):
        (copy,), failures = deliver()
        assert copy != first
        assert failures == []
    assert runs == [{"id": 7}] * 3
    assert scene.record(first).status == COMPLETED
    queue.close()


# --- which messages -------------------------------------------------------------------------------------------------


def test_where_is_over_the_body_and_the_others_stay_and_are_met_once(scene):
    meant = {scene.dead({"total": n}) for n in range(12, 14)}
    others = {scene.dead({"total": n}) for n in range(12)} | {scene.dead("no JSON")}
    fates = scene.run(where="body.total >= `12`")
    assert sorted(outcomes(fates)) == ["filtered"] * 13 + ["moved"] * 2
    assert {fate.message.id for fate in fates if fate.gone} == meant
    assert set(scene.there()) == others


@each(
    ("body", "where", "meant"),
    [
        ({"a": 0}, "body.a", True),
        ({"a": "x"}, "starts_with(body.a, 'x')", True),
        ([1], "body", True),
        ({"a": []}, "body.a", False),
        ({"a": ""}, "body.a", False),
        ({}, "body.a", False),
        ({"a": 1}, "starts_with(body.a, 'x')", False),
        ("x", "body.a", False),
    ],
)
def test_where_is_true_in_the_sense_of_jmespath(body, where, meant):
    assert Letters("n", None, where).meant(message(body)) is meant


def test_no_more_than_the_limit_leave(scene):
    for _ in range(13):
        scene.dead()
    assert outcomes(scene.run(limit=11)) == ["moved"] * 11
    assert (len(scene.there()), scene.aws.left(scene.target)) == (2, 11)


def test_a_dry_run_changes_nothing(scene):
    keys = [scene.dead() for _ in range(4)]
    scene.park(keys[0])
    scene.complete(keys[1])
    claim = scene.once.acquire(keys[2])
    before = list(scene.once.ledger.records())
    fates = {fate.message.id: fate.outcome for fate in scene.run(dry_run=True)}
    assert fates == dict(zip(keys, ["moved", "refused", "refused", "moved"], strict=True))
    assert [record for record, _ in scene.once.ledger.records()] == [record for record, _ in before]
    assert (set(scene.there()), scene.aws.left(scene.target)) == (set(keys), 0)
    claim.complete()


def test_a_message_that_comes_back_in_the_same_run_waits_for_the_next(scene):
    scene.dead(attributes=KEYED)
    fates = []
    with_comeback = scene.redrive().run()
    for fate in with_comeback:
        fates.append(fate)
        if len(fates) == 1:
            back = scene.dead(attributes=KEYED)
    assert outcomes(fates) == ["moved", "refused"]
    assert "this run already moved it" in fates[1].reason
    assert list(scene.there()) == [back]
    assert outcomes(scene.run()) == ["moved"]


def test_messages_stay_hidden_from_others_for_as_long_as_the_run_takes(scene):
    kept = scene.dead({"a": 1})
    run = scene.redrive(where="body.b", visibility=2).run()
    assert next(run).outcome == "filtered"
    other = Queue(scene.dlq)
    deadline = time.monotonic() + 4.5
    while time.monotonic() < deadline:
        assert other.receive(wait=0) == []
        time.sleep(0.1)
    run.close()
    assert [message.id for message in other.receive(wait=0)] == [kept]


# --- order ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def fifo(ministack, aws, tmp_path):
    made = Scene(ministack, f"sqlite:///{tmp_path}/ledger.db", ".fifo")
    yield made
    made.once.close()


def test_a_fifo_queue_keeps_its_groups_in_order_and_drops_a_second_copy(fifo):
    sent = [fifo.dead({"n": n}, MessageGroupId=f"g{n % 2}", MessageDeduplicationId=f"d{n}") for n in range(6)]
    fates = fifo.run()
    assert outcomes(fates) == ["moved"] * 6
    queue, got = Queue(fifo.target), []
    while messages := queue.receive(wait=0):
        got += messages
        queue.delete_many([message.receipt for message in messages])
    for group in ("g0", "g1"):
        assert [origin(m) for m in got if m.group == group] == sent[int(group[1]) :: 2]
    assert [m.dedup for m in got if origin(m) == sent[0]] != ["d0"]
    # Were it not known by its deduplication id, a resend would arrive.
    first = next(m for m in got if origin(m) == sent[0])
    queue.send(first.body, first.user_attributes, group=first.group, dedup=first.dedup)
    assert queue.receive(wait=0) == []


def test_nothing_overtakes_a_message_of_its_group_that_has_to_wait(fifo):
    busy, behind, other = (
        fifo.dead({"n": n}, MessageGroupId=group, MessageDeduplicationId=f"d{n}") for n, group in enumerate("aab")
    )
    claim = fifo.once.acquire(busy)
    fates = {fate.message.id: fate for fate in fifo.run()}
    assert [fates[key].outcome for key in (busy, behind, other)] == ["refused", "refused", "moved"]
    assert "an earlier message of its group a" in fates[behind].reason
    claim.complete()
    fates = {fate.message.id: fate for fate in fifo.run()}  # what is completed need not go first
    assert [fates[key].outcome for key in (busy, behind)] == ["refused", "moved"]


# --- trouble --------------------------------------------------------------------------------------------------------


@pytest.fixture
def between(ministack):
    """A proxy in front of the queues."""
    made = Proxy(ministack.port)
    yield made
    made.stop()


def test_a_message_that_was_sent_although_nobody_knew_takes_effect_once(scene, between):
    first = scene.dead()
    scene.park(first)
    between.rule = lambda seen: Fault(lose_reply=True) if seen.action == "SendMessage" else None
    (fate,) = scene.run(endpoint=between.url)
    assert fate.outcome == "failed"
    assert outcomes(scene.run()) == ["moved"]
    assert scene.aws.left(scene.target) >= 2
    scene.consume()
    assert scene.effects == [first]


def test_a_target_that_takes_nothing_ends_the_run_early(scene, between):
    keys = {scene.dead() for _ in range(40)}
    between.rule = lambda seen: Refuse("AccessDeniedException", 403) if seen.action == "SendMessage" else None
    fates = []
    with pytest.raises(QueueError, match="allow sqs:SendMessage"):
        fates.extend(scene.redrive(endpoint=between.url).run())
    assert len(between.actions) < 40
    assert set(scene.there()) == keys


def test_a_ledger_that_fails_ends_run_and_all_messages_are_shown_again(scene, monkeypatch):
    keys = {scene.dead() for _ in range(25)}
    run = scene.redrive()

    def fail(request):
        raise StoreError("the disk is full")

    monkeypatch.setattr(scene.once.store, "exchange", fail)
    with pytest.raises(StoreError, match="the disk is full"):
        list(run.run())
    assert set(scene.there()) == keys


def test_two_runs_at_once_move_each_message_once(scene):
    for _ in range(30):
        scene.dead()
    runs = [scene.redrive().run() for _ in range(2)]
    fates = [fate for pair in itertools.zip_longest(*runs) for fate in pair if fate is not None]
    assert outcomes(fates) == ["moved"] * 30
    assert scene.aws.left(scene.target) == 30


@pytest.mark.parametrize(("kind", "says"), [("swapped", "swap the two"), ("same", "both the"), ("fifo", "same kind")])
def test_queues_that_do_not_fit_are_refused_before_anything_is_received(scene, ministack, kind, says):
    fifo = ministack.queue(f"redrive-{next(_NUMBERS)}.fifo")
    source, target = {
        "swapped": (scene.target, scene.dlq),
        "same": (scene.target, scene.target),
        "fifo": (scene.dlq, fifo),
    }[kind]
    with pytest.raises(Exception, match=says):
        Redrive(scene.once, Queue(source), Queue(target), name="shop").waiting()


@each(
    "options",
    [
        {"completed": "yes"},
        {"visibility": 0},
        {"limit": 0},
        {"name": "a:b"},
        {"where": "("},
        {"key": "("},
        {"unwrap": "sqs"},
    ],
)
def test_bad_arguments_are_refused(scene, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        scene.redrive(**options)


# --- decisions, without servers -------------------------------------------------------------------------------------


def message(body, **attributes):
    text = body if isinstance(body, str) else json.dumps(body)
    return Message("id", "receipt", text, {}, attributes)


def held(status, attempts=3, lease_until=0.0):
    made = claim_of("k", "o", status=status, attempts=attempts, error="e", keep=None).at(1e-6)
    return made._replace(beat=1, lease_until=lease_until)


@each(
    ("record", "completed", "begun", "step"),
    [
        (None, "keep", False, "move"),
        (held(PARKED), "keep", False, "unpark"),
        (held(RELEASED), "keep", False, "reset"),
        (held(RELEASED, attempts=0), "keep", False, "move"),
        (held(IN_PROGRESS, lease_until=50.0), "drop", False, "reset"),
        (held(IN_PROGRESS, lease_until=101.0), "drop", True, "wait"),
        (held(COMPLETED), "keep", False, "keep"),
        (held(COMPLETED), "drop", False, "drop"),
        (held(COMPLETED), "rerun", False, "rerun"),
        (held(COMPLETED), "rerun", True, "finish"),
        (held(COMPLETED), "keep", True, "finish"),
        (held(COMPLETED)._replace(expires_at=99.0), "keep", True, "move"),
    ],
)
def test_what_is_done_about_a_message(record, completed, begun, step):
    assert planned(record, 100.0, completed, "keep", begun=begun).step == step


def test_the_key_of_a_message_is_its_attribute_or_its_id():
    assert origin(message("x")) == "id"
    assert origin(message("x", **{"onceward-key": Attribute("String", "first")})) == "first"
    assert origin(message("x", **{"onceward-key": Attribute("Binary", b"first")})) == "id"
    with pytest.raises(Refusal):
        Letters("n", "body.a.b").read(message({"a": 1}))


# --- killed at every point ------------------------------------------------------------------------------------------


class Killed(SystemExit):
    """What a kill looks like from inside: from that point on nothing of the process reaches anybody."""


class Lifetime:
    """Lets so many exchanges out, and kills at the next: before it is made, or after, with its reply lost."""

    def __init__(self, exchanges, *, after):
        self.left, self.after, self.dead = exchanges, after, False

    def of(self, exchange):
        def guarded(request):
            if self.dead:
                # The thread that keeps messages invisible has nobody to hand this on to; it is dead all the same.
                raise Killed if threading.current_thread().name != "onceward-visibility" else RuntimeError("killed")
            self.left -= 1
            if self.left >= 0:
                return exchange(request)
            self.dead = True
            if self.after:
                exchange(request)
            raise Killed

        return guarded


def _killed(scene, point, *, after):
    """Redrive until the kill; return whether there was one."""
    once = Once(scene.url)
    source, target = Queue(scene.dlq), Queue(scene.target)
    life = Lifetime(point, after=after)
    for part in (once.store, source._steps, target._steps):
        part.exchange = life.of(part.exchange)
    try:
        list(Redrive(once, source, target, name="shop", completed="rerun", visibility=1).run())
    except Killed:
        return True
    return False


@pytest.fixture(params=["before", "after"])
def after(request):
    """Whether the last exchange before the kill is still made."""
    return request.param == "after"


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("at_once", [False, True], ids=["later", "at once"])
def test_killed_at_any_exchange_nothing_is_lost_or_doubled(ministack, tmp_path, monkeypatch, after, at_once):
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    killed = []
    for point in itertools.count():
        scene = Scene(ministack, f"sqlite:///{tmp_path}/{point}.db")
        keys = [scene.dead() for _ in range(3)]
        scene.park(keys[0])
        scene.complete(keys[1])
        scene.effects.clear()
        if not _killed(scene, point, after=after):
            break
        if at_once:
            scene.consume()  # the copy has run before anybody looks at the original again
        killed.append((point, scene, keys))
    assert len(killed) > 30
    time.sleep(1.1)  # visibility and leases of the killed are over
    for point, scene, keys in killed:
        left = [fate for fate in scene.run(completed="rerun", visibility=1) if not fate.gone]
        assert left == [], point
        scene.consume()
        assert sorted(scene.effects) == sorted(keys), point
        assert scene.aws.left(scene.dlq) == 0, point
        scene.once.close()


@pytest.fixture
def cli(tmp_path, aws):
    return Cli(tmp_path)


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_finds_the_namespace_and_tells_each_message_and_sum(scene, cli):
    keys = [scene.dead() for _ in range(3)]
    scene.park(keys[0])
    scene.complete(keys[1])
    result = cli.run("redrive", scene.dlq, "--to", scene.target, "--store", scene.url)
    lines = sorted(result.stdout.decode().splitlines())
    assert result.returncode == 1
    told = f"moved    {keys[0]} shop:{keys[0]}: PARKED after 1 attempt(s); last error: card declined"
    assert told in lines
    assert lines[2].startswith(f"refused  {keys[1]} shop:{keys[1]}: completed already")
    assert result.stderr == "onceward: moved 2, refused 1\n"


@pytest.mark.parametrize("others", [[], ["shop", "billing"]])
def test_the_command_asks_for_a_name_that_it_cannot_find(scene, cli, others):
    first = scene.dead()
    scene.once.ledger.stats()
    for name in others:
        scene.once.acquire("a", name=name).complete()
    result = cli.run("redrive", scene.dlq, "--to", scene.target, "--store", scene.url)
    assert result.returncode == 2
    assert "give --name" in result.stderr
    assert f"There are: {', '.join(sorted(others)) or 'none'}" in result.stderr
    assert list(scene.there()) == [first]


@pytest.mark.sampled(completed=1)
@pytest.mark.parametrize("completed", ["drop", "rerun"])
def test_the_command_does_not_touch_completed_messages_unasked(scene, cli, completed):
    first = scene.dead()
    scene.complete(first)
    command = ("redrive", scene.dlq, "--to", scene.target, "--store", scene.url, "--completed", completed)
    refused = cli.run(*command)
    assert (refused.returncode, list(scene.there())) == (2, [first])
    assert "Pass --yes if you want that" in refused.stderr
    assert cli.run(*command, "--yes").returncode == 0
    assert scene.aws.left(scene.dlq) == 0


def test_the_command_stops_when_told_and_shows_again_what_it_holds(scene, cli):
    keys = {scene.dead({"n": n}) for n in range(300)}
    scene.once.acquire("a").complete()
    command = ("redrive", scene.dlq, "--to", scene.target, "--store", scene.url, "--where=body.x", "--json")
    process = cli.start(*command)
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"; stopped" in err
    until(lambda: set(scene.there()) == keys)


# --- inputs that are compared, sizes, and a queue that hands over twice ---------------------------------------------


@pytest.fixture
def handle(scene):
    """A consumer that compares its input, and has handled order 1 with the total 10."""

    @on_sqs(scene.once, key="order.id", fingerprint=True)
    def handle(order):
        scene.effects.append((order["id"], order["total"]))

    def deliver(order):
        record = {"messageId": "m", "body": json.dumps(order), "eventSource": "aws:sqs"}
        return handle({"Records": [record]})["batchItemFailures"]

    assert deliver({"id": 1, "total": 10}) == []
    return deliver


@pytest.mark.usefixtures("handle")
@pytest.mark.sampled(completed=1)
@pytest.mark.parametrize("completed", ["drop", "rerun"])
@pytest.mark.parametrize(
    ("fingerprint", "why"), [(None, "say what it compares with --fingerprint"), ("body", "another input")]
)
def test_a_message_whose_effect_was_never_made_is_not_dropped_for_another(scene, completed, fingerprint, why):
    other = scene.dead({"id": 1, "total": 99})
    (fate,) = scene.run(key="body.id", fingerprint=fingerprint, completed=completed)
    assert (fate.outcome, list(scene.there())) == ("refused", [other])
    assert why in fate.reason
    assert scene.record(1).status == COMPLETED


@pytest.mark.usefixtures("handle")
def test_nor_is_it_when_an_earlier_run_had_begun_to_move_it(scene):
    other = scene.dead({"id": 1, "total": 99})
    Once(scene.once.store).acquire(other, name=module.NAME).release("killed")
    for fingerprint in (None, "body"):
        (fate,) = scene.run(key="body.id", fingerprint=fingerprint)
        assert (fate.outcome, list(scene.there())) == ("refused", [other])


@pytest.mark.parametrize(("completed", "outcome"), [("drop", "dropped"), ("rerun", "moved")])
def test_a_message_whose_own_effect_was_made_is_dropped_or_rerun_as_told(scene, handle, completed, outcome):
    scene.dead({"total": 10, "id": 1})
    assert outcomes(scene.run(key="body.id", fingerprint="body", completed=completed)) == [outcome]
    assert scene.aws.left(scene.dlq) == 0
    assert handle({"id": 1, "total": 10}) == []
    assert scene.effects == [(1, 10)] * (2 if completed == "rerun" else 1)


def test_a_message_without_room_for_its_key_stays_and_so_does_its_key(scene):
    scene.aws.ask("AmazonSQS.SetQueueAttributes", QueueUrl=scene.target, Attributes={"MaximumMessageSize": "1024"})
    first = scene.dead("x" * 1000)
    scene.park(first)
    (fate,) = scene.run()
    assert (fate.outcome, list(scene.there())) == ("refused", [first])
    assert "its target takes 1024" in fate.reason
    assert scene.record(first).status == "PARKED"


def test_a_message_that_comes_twice_in_one_answer_is_moved_once(scene, monkeypatch):
    first = scene.dead()
    run = scene.redrive()
    receive = run._source.receive
    monkeypatch.setattr(run._source, "receive", lambda *arguments: 2 * receive(*arguments))
    assert [(fate.outcome, fate.message.id) for fate in run.run()] == [("moved", first)]
    assert (scene.aws.left(scene.dlq), scene.aws.left(scene.target)) == (0, 1)

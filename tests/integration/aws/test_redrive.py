"""Dead letters moved back: what the ledger says of each, which of them move, and what the command tells."""

import json
import signal
import sqlite3
import time
from contextlib import closing

import pytest

from fixtures import closing_fixture
from onceward import Once
from onceward.aws import on_sqs
from onceward.aws.dead_letters import redrive as module
from onceward.aws.dead_letters.letters import origin
from onceward.aws.dead_letters.redrive import Redrive
from onceward.aws.sqs.queue import Queue
from onceward.core.record import COMPLETED, PARKED
from onceward.errors import Parked
from servers.needs import numbers
from tables import each
from waiting import until

pytestmark = pytest.mark.sampled(at_once=1)

_NUMBERS = numbers()
TEN = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(10)}
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
        self.close = self.once.close

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


scene = closing_fixture(lambda ministack, aws, tmp_path: Scene(ministack, f"sqlite:///{tmp_path}/ledger.db"))


def outcomes(fates):
    return [fate.outcome for fate in fates]


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
    scene.once.acquire(first, lease=1)
    time.sleep(1.1)
    with pytest.raises(Parked):
        scene.once.acquire(first, on_lapse="park")
    (fate,) = scene.run()
    assert (fate.outcome, fate.waits, scene.record(first).status) == ("refused", True, PARKED)
    assert "ask the downstream" in fate.reason
    assert outcomes(scene.run(in_doubt="rerun")) == ["moved"]
    scene.consume()
    assert scene.effects == [first]


def test_a_key_that_is_completed_after_the_look_is_not_sent_again(scene, monkeypatch):
    first, readied = scene.dead(), module.readied
    scene.park(first)

    def late(*arguments, dry_run, **options):
        if not dry_run:
            scene.once.ledger.unpark(f"shop:{first}")
            scene.complete(first)
        return readied(*arguments, dry_run=dry_run, **options)

    monkeypatch.setattr(module, "readied", late)
    (fate,) = scene.run()
    assert (fate.outcome, scene.aws.left(scene.target)) == ("refused", 0)
    assert "completed already" in fate.reason


def test_a_message_whose_record_is_damaged_stays_and_the_others_go_on(scene):
    bad = [scene.dead() for _ in range(12)]
    for key in bad:
        scene.park(key)
    with closing(sqlite3.connect(scene.url.removeprefix("sqlite:///"), isolation_level=None)) as damaging:
        damaging.execute("UPDATE onceward SET expires_at = 'soon'")
    scene.dead()
    fates = scene.run()
    assert sorted(outcomes(fates)) == ["moved", *["refused"] * 12]
    assert set(scene.there()) == set(bad)


def test_attempts_of_a_released_key_are_given_back_and_a_lapsed_one_is_left_to_its_consumer(scene):
    released, lapsed = scene.dead(), scene.dead()
    scene.once.acquire(released).release("timeout")
    scene.once.acquire(lapsed, lease=1)
    time.sleep(1.1)
    assert outcomes(scene.run()) == ["moved", "moved"]
    assert [scene.record(key).attempts for key in (released, lapsed)] == [0, 1]
    assert scene.record(released).error == "timeout"
    with pytest.raises(Parked):
        scene.once.acquire(lapsed, on_lapse="park")


@pytest.mark.parametrize(
    ("body", "attributes", "options", "why"),
    [
        ({"order": {}}, None, {"key": "body.order.id"}, "its key cannot be read"),
        ({"id": 7}, TEN, {}, "it has 10 attributes, and SQS takes no more"),
        ("x" * 1000, None, {}, "its target takes 1024"),
    ],
    ids=["no key", "ten attributes", "full"],
)
def test_a_message_that_cannot_be_moved_stays_and_so_does_its_key(scene, body, attributes, options, why):
    scene.aws.ask("AmazonSQS.SetQueueAttributes", QueueUrl=scene.target, Attributes={"MaximumMessageSize": "1024"})
    first = scene.dead(body, attributes)
    scene.park(first)
    (fate,) = scene.run(**options)
    assert (fate.outcome, list(scene.there()), scene.record(first).status) == ("refused", [first], PARKED)
    assert why in fate.reason


def test_a_message_in_an_envelope_of_sns_has_the_key_that_is_in_there(scene):
    scene.dead({"Type": "Notification", "MessageId": "from-sns", "Message": json.dumps({"id": "a"})})
    scene.park("from-sns")
    (fate,) = scene.run(unwrap="sns")
    assert (fate.outcome, fate.key) == ("moved", "shop:from-sns")


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


fifo = closing_fixture(lambda ministack, aws, tmp_path: Scene(ministack, f"sqlite:///{tmp_path}/ledger.db", ".fifo"))


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


@each("options", [{"completed": "yes"}, {"visibility": 0}, {"limit": 0}, {"name": "a:b"}])
def test_bad_arguments_are_refused(scene, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        scene.redrive(**options)


def test_the_command_tells_each_message_and_sum(scene, cli):
    keys = [scene.dead() for _ in range(3)]
    scene.park(keys[0])
    scene.complete(keys[1])
    result = cli.run("redrive", scene.dlq, "--to", scene.target, "--store", scene.url, "--name", "shop")
    lines = sorted(result.stdout.decode().splitlines())
    assert result.returncode == 1
    told = f"moved    {keys[0]} shop:{keys[0]}: PARKED after 1 attempt(s); last error: card declined"
    assert told in lines
    assert lines[2].startswith(f"refused  {keys[1]} shop:{keys[1]}: completed already")
    assert result.stderr == "onceward: moved 2, refused 1\n"


def test_the_command_says_how_many_it_could_not_receive(fifo, cli):
    fifo.complete("another")
    for n in range(12):
        fifo.dead({"n": n}, MessageGroupId="a", MessageDeduplicationId=f"d{n}")
    command = ("redrive", fifo.dlq, "--to", fifo.target, "--store", fifo.url, "--name", "shop")
    result = cli.run(*command, "--key", "body.x")
    assert (result.returncode, "about 2 message(s)" in result.stderr) == (1, True)


def test_the_command_does_not_drop_completed_messages_unasked(scene, cli):
    first = scene.dead()
    scene.complete(first)
    command = ("redrive", scene.dlq, "--to", scene.target, "--store", scene.url, "--name=shop", "--completed=drop")
    refused = cli.run(*command)
    assert (refused.returncode, list(scene.there())) == (2, [first])
    assert "Pass --yes if you want that" in refused.stderr
    assert cli.run(*command, "--yes").returncode == 0
    assert scene.aws.left(scene.dlq) == 0


def test_the_command_stops_when_told_and_shows_again_what_it_holds(scene, cli):
    keys = {scene.dead({"n": n}) for n in range(300)}
    scene.once.acquire("a").complete()
    command = (
        "redrive",
        scene.dlq,
        "--to",
        scene.target,
        "--store",
        scene.url,
        "--name=shop",
        "--key=body.x",
        "--json",
    )
    process = cli.start(*command)
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"; stopped" in err
    until(lambda: set(scene.there()) == keys)


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
@pytest.mark.parametrize(
    ("fingerprint", "why"), [(None, "say what it compares with --fingerprint"), ("body", "another input")]
)
def test_a_message_whose_effect_was_never_made_is_not_dropped_for_another(scene, fingerprint, why):
    other = scene.dead({"id": 1, "total": 99})
    (fate,) = scene.run(key="body.id", fingerprint=fingerprint, completed="drop")
    assert (fate.outcome, list(scene.there())) == ("refused", [other])
    assert why in fate.reason
    assert scene.record(1).status == COMPLETED


def test_a_message_whose_own_effect_was_made_is_dropped_as_told(scene, handle):
    scene.dead({"total": 10, "id": 1})
    assert outcomes(scene.run(key="body.id", fingerprint="body", completed="drop")) == ["dropped"]
    assert scene.aws.left(scene.dlq) == 0
    assert handle({"id": 1, "total": 10}) == []
    assert scene.effects == [(1, 10)]

"""Messages that are moved back, from the dead letters or from the ledger: killed at any exchange, or beside workers, none is lost or doubled."""

import itertools
import threading
import time

import pytest
from test_redrive import Scene, outcomes

from faults.injected import Faults
from fixtures import closing_fixture
from onceward import Once, Parked
from onceward.aws.dead_letters import redrive as module
from onceward.aws.dead_letters.letters import unpark_to
from onceward.aws.dead_letters.redrive import Redrive
from onceward.aws.sqs.message import kept_text
from onceward.aws.sqs.queue import Queue, QueueError
from onceward.consumers.keeping import Place
from onceward.core.drivers import drive
from onceward.core.protocol import message_in
from onceward.core.record import COMPLETED
from onceward.errors import OncewardError
from onceward.stores.memory import MemoryStore
from queues.kept import MESSAGE, keeping, parked, record_of
from servers.needs import numbers
from servers.proxy import Fault, Proxy, Refuse


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "WAIT", 0)  # the server is one, and answers at once whether it has any


scene = closing_fixture(lambda ministack, aws, tmp_path: Scene(ministack, f"sqlite:///{tmp_path}/ledger.db"))


# A proxy in front of the queues.
between = closing_fixture(lambda ministack: Proxy(ministack.port))


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


def test_two_runs_at_once_move_each_message_once(scene):
    for _ in range(30):
        scene.dead()
    runs = [scene.redrive().run() for _ in range(2)]
    fates = [fate for pair in itertools.zip_longest(*runs) for fate in pair if fate is not None]
    assert outcomes(fates) == ["moved"] * 30
    assert scene.aws.left(scene.target) == 30


class Killed(SystemExit):
    """What a kill looks like from inside: from that point on nothing of the process reaches anybody."""


class Lifetime:
    """Lets so many exchanges out, and kills at the next: before it is made, or after, with its reply lost."""

    def __init__(self, exchanges, *, after):
        self.left, self.after, self.dead = exchanges, after, False

    def of(self, exchange):
        def guarded(request):
            # The thread that keeps messages invisible has nobody to hand this on to; it is dead all the same.
            killed = Killed if threading.current_thread().name != "onceward-visibility" else RuntimeError("killed")
            if self.dead:
                raise killed
            self.left -= 1
            if self.left >= 0:
                return exchange(request)
            self.dead = True
            if self.after:
                exchange(request)
            raise killed

        return guarded


def _killed(scene, point, *, after):
    """Redrive until the kill; return whether there was one."""
    once = Once(scene.url)
    source, target = Queue(scene.dlq), Queue(scene.target)
    life = Lifetime(point, after=after)
    for part in (once.store, source, target):
        part.exchange = life.of(part.exchange)
    try:
        list(Redrive(once, source, target, name="shop", completed="drop", visibility=1).run())
    except Killed:
        return True
    return False


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("after", [False, True], ids=["before the exchange", "after it"])
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
    assert len(killed) > 12
    time.sleep(1.1)  # visibility and leases of the killed are over
    for point, scene, keys in killed:
        left = [fate for fate in scene.run(completed="drop", visibility=1) if not fate.leaves]
        assert left == [], point
        scene.consume()
        assert sorted(scene.effects) == sorted([keys[0], keys[2]]), point
        assert scene.aws.left(scene.dlq) == 0, point
        scene.once.close()


def test_a_message_that_comes_twice_in_one_answer_is_moved_once(scene, monkeypatch):
    first = scene.dead()
    run = scene.redrive()
    receive = run._source.receive
    monkeypatch.setattr(run._source, "receive", lambda *arguments: 2 * receive(*arguments))
    assert [(fate.outcome, fate.message.id) for fate in run.run()] == [("moved", first)]
    assert (scene.aws.left(scene.dlq), scene.aws.left(scene.target)) == (0, 1)


NAMES = numbers()


class Unparking:
    """A parked key that keeps a message, a real queue, and a worker that is called by hand."""

    def __init__(self, made, plan=None):
        self.store = Faults(MemoryStore(), plan or (lambda ask: None))
        self.once = Once(self.store, name="shop")
        self.direct = Once(self.store.store, name="shop")  # the same ledger, past the faults
        self.url = made()
        self.queue = Queue(self.url)
        arn = self.queue.attributes()["QueueArn"]
        self.message = MESSAGE._replace(body='{"id": "a"}', id=f"m-{next(NAMES)}")
        parked(self.direct, "a", kept_text(self.message, arn))
        self.arn, self.effects = arn, []

    def work(self, once=None):
        """Handle what is in the queue as a worker does, with a handler that succeeds."""
        once = once or self.direct
        for message in self.queue.receive(wait=0):
            try:
                once.run("a", self.effects.append, message.body)
            except Parked:
                text = kept_text(message, self.arn)
                if drive(keeping(once.store, Place("shop:a"), text), once.store) is not None:
                    self.queue.change_many([(message.receipt, 0)])
                    continue
            self.queue.delete_many([message.receipt])

    def resend(self, once=None):
        return unpark_to((once or self.direct).ledger, "shop:a", self.queue)

    def settle(self):
        """Do what an operator does who was told of no success, until the message is handled."""
        if message_in(record_of(self.direct, "shop:a")) is not None:
            self.resend()
        self.work()
        self.work()
        assert self.effects == ['{"id": "a"}']
        assert record_of(self.direct, "shop:a").status == COMPLETED
        self.queue.close()


def test_a_worker_that_is_always_faster_makes_operator_give_up_unharmed(made):
    scene = Unparking(made, lambda ask: scene.work() if ask.verb == "swap" else None)
    with pytest.raises(OncewardError, match="stop the workers"):
        scene.resend(scene.once)
    scene.settle()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["alone", "with a worker"])
def test_an_operator_killed_at_any_exchange_neither_loses_nor_doubles(made, after, meanwhile):
    for point in itertools.count():
        scene, life = Unparking(made), Lifetime(point, after=after)
        operator = Queue(scene.url)
        for part in (scene.store, operator):
            part.exchange = life.of(part.exchange)
        try:
            unpark_to(scene.once.ledger, "shop:a", operator)
        except Killed:
            pass
        else:
            assert point == 5, "a look at the key, the queue's attributes, a second look, the copy, and the unparking"
            scene.settle()
            return
        if meanwhile:
            scene.work()
        scene.settle()

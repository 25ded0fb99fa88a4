"""A message that the ledger keeps is sent again: with workers at work meanwhile, and with its operator killed anywhere."""

import itertools

import pytest
from test_redrive_killed import Killed, Lifetime

from onceward import Once, Parked
from onceward.aws.dead_letters.letters import unpark_to
from onceward.aws.sqs.message import kept_text
from onceward.aws.sqs.queue import Queue
from onceward.consumers.keeping import KeepOutcome, Place
from onceward.core.drivers import drive
from onceward.core.protocol import message_in
from onceward.core.record import COMPLETED
from onceward.errors import OncewardError
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults
from queues.kept import MESSAGE, keeping, parked, record_of
from servers.needs import numbers

NAMES = numbers()


class Scene:
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
                if drive(keeping(once.store, Place("shop:a"), text), once.store) is not KeepOutcome.KEPT:
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
    scene = Scene(made, lambda ask: scene.work() if ask.verb == "swap" else None)
    with pytest.raises(OncewardError, match="stop the workers"):
        scene.resend(scene.once)
    scene.settle()


@pytest.mark.parametrize("number", [1, 2])
def test_an_operator_who_unparks_while_a_worker_keeps_again_loses_nothing(made, number):
    """The worker has an older copy in hand, and the operator does everything between two of its exchanges."""
    scene, asked = Scene(made), []
    scene.queue.send(scene.message.body, scene.message.user_attributes)
    (message,) = scene.queue.receive(wait=0)

    def plan(ask):
        asked.append(ask)
        if len(asked) == number:
            scene.resend()

    scene.store.plan = plan
    end = drive(keeping(scene.store, Place("shop:a"), kept_text(message, scene.arn)), scene.store)
    scene.store.plan = lambda ask: None
    assert len(asked) >= number
    assert end is KeepOutcome.LET_GO, "its key runs again, and so may this message"
    scene.queue.change_many([(message.receipt, 0)])
    scene.settle()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["alone", "with a worker"])
def test_an_operator_killed_at_any_exchange_neither_loses_nor_doubles(made, after, meanwhile):
    for point in itertools.count():
        scene, life = Scene(made), Lifetime(point, after=after)
        operator = Queue(scene.url)
        for part in (scene.store, operator._steps):
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

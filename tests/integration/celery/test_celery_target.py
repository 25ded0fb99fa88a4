"""Tasks that leave with a record, by the outbox."""

import socket
import uuid

import pytest
from celery import Celery

from onceward import Claim
from onceward.celery import CeleryTarget
from onceward.outbox import MessageNotSent, MessageRefused, OutboxMessage, register
from queues.celery_workers import Shop
from waiting import until

pytestmark = pytest.mark.sampled(broker=1)


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def shop(broker, tmp_path):
    queue = {"name": f"celery-{uuid.uuid4().hex}", "arguments": {}}  # a killed worker's tasks go back to their queue
    made = Shop(broker.url, tmp_path, backend=f"file://{tmp_path}", queue=queue)
    yield made
    made.stop()


def test_a_task_leaves_with_the_record_and_runs_once(shop):
    scheme = f"celery{uuid.uuid4().hex}"
    register(scheme, lambda address: CeleryTarget(shop.client, address))

    @shop.once(key="order", name="place")
    def place(order: int, claim: Claim) -> None:
        claim.send(f"{scheme}:shop.charge", {"order": {"id": order}})
        claim.send(
            f"{scheme}:shop.notify?queue={shop.client.conf.task_default_queue}", [{"receipt": order}, "sent"], delay=1
        )

    place(7)
    place(7)
    shop.start("-c", 1)
    shop.until(lambda: shop.journal() == {"charge 7": 1, "notify 7 sent": 1})
    record = shop.record("charge", "7")
    assert record.origin


def test_a_message_that_is_sent_again_is_the_same_task(shop):
    target = CeleryTarget(shop.client, "celery:shop.by_id")
    message = OutboxMessage(str(uuid.uuid4()), "[1]")
    for _ in range(2):
        until(lambda: target.send([message]) == [None])  # a busy broker may close a connection in its handshake
    shop.start("-c", 1)
    shop.get(shop.send("based", "last"))
    assert shop.journal() == {f"by_id {message.key}": 1, "based last": 1}


def test_what_is_no_task_is_refused():
    app = Celery("shop", broker="memory://", set_as_current=False)
    for wrong in ("celery:", "celery:shop.charge?other=1", "celery:shop.charge?queue="):
        with pytest.raises(ValueError, match="is not a task"):
            CeleryTarget(app, wrong)
    target = CeleryTarget(app, "celery:shop.charge")
    unfit = (OutboxMessage("k", "text"), OutboxMessage("k", "7"), OutboxMessage("k", "[]", group="g"))
    as_celerys = [OutboxMessage("k", "[]", {name: "42"}) for name in ("id", "task", "retries", "is_eager", "CC")]
    for message in (*unfit, *as_celerys):
        with pytest.raises(ValueError, match=r"shop\.charge"):
            target.check(message)
        (refused,) = target.send([message])
        assert isinstance(refused, MessageRefused)


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_without_the_broker_a_task_is_sent_later(scheme):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        url = f"{scheme}://127.0.0.1:{closed.getsockname()[1]}"
        app = Celery("shop", broker=url, set_as_current=False)
        told = CeleryTarget(app, "celery:shop.charge").send([OutboxMessage("k", "[]"), OutboxMessage("l", "x")])
    assert isinstance(told[0], MessageNotSent)
    assert isinstance(told[1], MessageRefused)

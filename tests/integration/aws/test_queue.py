"""The client of a queue, against a real one: what it sends and reads, and what it does when requests fail."""

import asyncio
import itertools
import time

import pytest

from fixtures import closing_fixture
from onceward.aws.sqs.queue import Attribute, Outgoing, Queue, QueueError
from servers.needs import numbers
from servers.proxy import Fault, Refuse

pytestmark = pytest.mark.sampled(ask=1)

NAMES = numbers()
ODD = "\t\n\r ~\x7f\x85\ud7ff\ue000\ufffd\U00010000\U0010ffff \u2028 {\"a\": 'ü'} 🔑"


class Face:
    """Calls a queue's methods by blocking, or awaits those that can be awaited."""

    def __init__(self, kind, proxy, ministack):
        self.kind, self.proxy, self.ministack = kind, proxy, ministack
        self.runner = asyncio.Runner() if kind == "async" else None
        self.open = []

    def made(self, fifo=False, **attributes):
        """Make a queue and return its URL."""
        return self.ministack.queue(f"queue-{next(NAMES)}{'.fifo' if fifo else ''}", **attributes)

    def queue(self, url=None, **options):
        self.open.append(Queue(url or self.made(), **{"endpoint": self.proxy.url, **options}))
        return self.open[-1]

    def __call__(self, queue, method, *args, **options):
        awaits = getattr(queue, f"{method}_async", None)
        if self.runner is None or awaits is None:
            return getattr(queue, method)(*args, **options)
        return self.runner.run(awaits(*args, **options))

    def close(self):
        for queue in self.open:
            queue.close()
        if self.runner is not None:
            self.runner.close()


ask = closing_fixture(lambda request, front, ministack: Face(request.param, front, ministack), params=["sync", "async"])
blocking = closing_fixture(lambda front, ministack: Face("sync", front, ministack))


def first(count, what, action=None):
    """A rule that applies ``what`` to the first requests with an action, or with any."""
    left = itertools.count(1)
    return lambda seen: what if action in {None, seen.action} and next(left) <= count else None


def of(proxy, action):
    return [seen.body for seen in proxy.seen if seen.action == action]


def test_a_message_comes_out_as_it_went_in_until_it_is_deleted(ask, ministack):
    url = ask.made()
    queue = ask.queue(url)
    given = {"text": "ü", "raw": Attribute("Binary", base64=b"\x00\xff"), "own": Attribute("Number.int", "12")}
    sent = ask(queue, "send", Outgoing(ODD, given))
    (message,) = ask(queue, "receive", wait=0)
    assert (message.id, message.body, message.receive_count) == (sent, ODD, 1)
    assert message.user_attributes == {**given, "text": Attribute("String", "ü")}
    assert message.group is None
    assert ask(queue, "receive", wait=0) == []  # it is invisible
    assert ministack.left(url) == 1
    assert ask(queue, "delete_many", [message.receipt]) == [None]
    assert ministack.left(url) == 0


def test_many_are_received_held_and_deleted_in_tens(ask, front, ministack):
    url = ask.made(VisibilityTimeout=30)
    queue = ask.queue(url)
    ids = [ask(queue, "send", Outgoing(str(number))) for number in range(23)]
    got = [message for _ in range(3) for message in ask(queue, "receive", wait=0)]
    assert {message.id: message.body for message in got} == {id: str(number) for number, id in enumerate(ids)}
    assert ask(queue, "receive", wait=0) == []
    receipts = [message.receipt for message in got]
    assert ask(queue, "change_many", [(receipt, 0) for receipt in receipts[:12]]) == [None] * 12
    again = [message for _ in range(2) for message in ask(queue, "receive", wait=0)]
    assert {message.id for message in again} == {message.id for message in got[:12]}
    assert {message.receive_count for message in again} == {2}
    receipts = [message.receipt for message in again] + receipts[12:]
    assert ask(queue, "delete_many", receipts) == [None] * 23
    assert [len(body["Entries"]) for body in of(front, "DeleteMessageBatch")] == [10, 10, 3]
    assert ministack.left(url) == 0


PASSING = [
    Refuse("RequestThrottled"),
    Refuse("ThrottlingException"),
    Refuse("InternalFailure", 500),
    Refuse("ServiceUnavailable", 503),
    Fault(lose_request=True),
    Fault(reset_reply=True),
]


@pytest.mark.parametrize("what", PASSING, ids=str)
def test_what_passes_by_itself_is_tried_again(ask, front, what):
    queue = ask.queue(ask.made(fifo=True, VisibilityTimeout=0))
    for method, action, arguments in [
        ("send", "SendMessage", (Outgoing("a", {"n": "1"}, "g", "a"),)),
        ("attributes", "GetQueueAttributes", ()),
        ("receive", "ReceiveMessage", (10, 0)),
    ]:
        front.clear()
        front.rule = first(2, what)
        value = ask(queue, method, *arguments)
        assert not isinstance(value, list) or not any(isinstance(one, Exception) for one in value)
        assert len(of(front, action)) == 3
    assert [message.body for message in value] == ["a"]
    held = [(message.receipt, 60) for message in value]
    front.rule = first(2, what)
    assert ask(queue, "change_many", held) == [None]
    # A lost answer to a delete is another matter here: this server, unlike SQS, knows a deleted message no more.
    front.rule = first(2, what if what != Fault(reset_reply=True) else Refuse("RequestThrottled"))
    assert ask(queue, "delete_many", [receipt for receipt, _ in held]) == [None]


def test_a_retry_of_a_receive_from_a_fifo_queue_asks_for_same_messages(ask, front):
    queue = ask.queue(ask.made(fifo=True))
    front.rule = first(2, Fault(lose_request=True))
    ask(queue, "receive", wait=0)
    ask(queue, "receive", wait=0)
    ids = [body["ReceiveRequestAttemptId"] for body in of(front, "ReceiveMessage")]
    assert ids[0] == ids[1] == ids[2] != ids[3]


def test_what_does_not_pass_is_given_up_after_some_tries(ask, front):
    queue = ask.queue()
    front.rule = lambda seen: Refuse("RequestThrottled")
    with pytest.raises(QueueError, match="sqs:ReceiveMessage was refused, RequestThrottled") as caught:
        ask(queue, "receive", wait=0)
    assert (caught.value.code, caught.value.transient, caught.value.unsure) == ("RequestThrottled", True, False)
    assert front.actions == ["ReceiveMessage"] * 6
    errors = ask(queue, "delete_many", ["r"] * 11)  # all pauses are used up by the first ten
    assert [(error.code, error.transient) for error in errors] == [("RequestThrottled", True)] * 11
    assert front.actions[6:] == ["DeleteMessageBatch"] * 7


@pytest.mark.parametrize(
    "what", [Refuse("InternalFailure", 500), Fault(lose_reply=True), Fault(reset_reply=True)], ids=str
)
def test_message_that_may_have_been_sent_to_standard_queue_is_not_resent(ask, front, what):
    queue = ask.queue()
    front.rule = first(1, what)
    with pytest.raises(QueueError) as caught:
        ask(queue, "send", Outgoing("a"))
    assert (caught.value.transient, caught.value.unsure) == (True, True)
    assert len(of(front, "SendMessage")) == 1


def test_what_fails_in_a_batch_is_told_for_its_message_alone(ask):
    queue = ask.queue()
    for number in range(9):
        ask(queue, "send", Outgoing(str(number)))
    receipts = [message.receipt for message in ask(queue, "receive", wait=0)]
    receipts[4:4] = ["wrong", "also"]
    held = ask(queue, "change_many", [(receipt, 60) for receipt in receipts])
    gone = ask(queue, "delete_many", receipts)
    for errors in (held, gone):
        assert [error is None for error in errors] == [True] * 4 + [False] * 2 + [True] * 5
        assert (errors[4].code, errors[4].transient) == ("ReceiptHandleIsInvalid", False)
    assert "sqs:DeleteMessageBatch was refused, ReceiptHandleIsInvalid" in str(gone[5])
    assert "the receipt has expired" in str(gone[5])


def _without(number):
    """A fault of the service for one message of a batch of deletes."""

    def request(body):
        return {**body, "Entries": [entry for entry in body["Entries"] if entry["Id"] != number]}

    def reply(answer):
        failed = {"Id": number, "Code": "InternalError", "SenderFault": False}
        return {**answer, "Failed": [failed]}

    return Fault(edit_request=request, edit_reply=reply)


def test_a_message_of_a_batch_that_failed_for_now_is_asked_for_again_alone(ask, front, ministack):
    url = ask.made()
    queue = ask.queue(url)
    for number in range(3):
        ask(queue, "send", Outgoing(str(number)))
    receipts = [message.receipt for message in ask(queue, "receive", wait=0)]
    front.rule = first(1, _without("1"), "DeleteMessageBatch")
    assert ask(queue, "delete_many", receipts) == [None] * 3
    tries = [[entry["Id"] for entry in body["Entries"]] for body in of(front, "DeleteMessageBatch")]
    assert tries == [["0", "1", "2"], ["1"]]
    assert ministack.left(url) == 0


def test_a_message_that_an_answer_does_not_mention_has_an_error(ask, front):
    queue = ask.queue()
    front.rule = lambda seen: Fault(edit_reply=lambda _: {"Successful": [{"Id": "1"}]})
    missed, told = ask(queue, "delete_many", ["a", "b"])
    assert told is None
    assert "the answer does not say what became of this message" in str(missed)
    assert missed.unsure


def test_an_error_that_does_not_pass_says_what_to_do(ask, front):
    with pytest.raises(QueueError, match=r"QueueDoesNotExist .*check its name, its account and the region") as caught:
        ask(ask.queue("nowhere"), "receive")
    assert (caught.value.code, caught.value.transient, caught.value.unsure) == ("QueueDoesNotExist", False, False)
    queue = ask.queue()
    front.clear()
    front.rule = lambda seen: Refuse("AccessDeniedException", 403, "no")
    (error,) = ask(queue, "delete_many", ["r"])
    assert "was refused, AccessDenied (no): allow sqs:DeleteMessage on the queue" in str(error)
    assert len(front.seen) == 1  # it is not tried again


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_a_machine_with_a_wrong_clock_signs_with_the_services(ask, front, ahead):
    queue = ask.queue()
    front.date, front.tolerance = (lambda: time.time() + ahead), 300
    assert ask(queue, "receive", wait=0) == []
    assert ask(queue, "receive", wait=0) == []
    assert front.actions == ["ReceiveMessage"] * 3


def test_a_queue_is_found_by_its_url_its_arn_or_its_name(ask, front, ministack):
    url = ask.made()
    arn = ministack.queue_arn(url)
    ministack.send(url, "a")
    for queue in (url, arn, arn.rpartition(":")[2]):
        made = ask.queue(queue)
        front.clear()
        (message,) = ask(made, "receive", wait=0)
        ask(made, "change_many", [(message.receipt, 0)])
        located = [] if queue == url else ["GetQueueUrl"]
        assert front.actions == [*located, "ReceiveMessage", "ChangeMessageVisibilityBatch"]
        assert made.name == arn.rpartition(":")[2]
        if queue == arn:
            assert front.seen[0].body["QueueOwnerAWSAccountId"] == arn.split(":")[4]

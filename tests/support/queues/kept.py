"""Messages of a queue of SQS that the ledger keeps."""

from onceward.aws.sqs.message import Attribute, Message, alike, kept_text, read_kept
from onceward.consumers import keeping as kept_in_ledger
from onceward.consumers.keeping import Place
from onceward.core.drivers import drive
from onceward.core.protocol import message_in
from onceward.keys.ledger_keys import ledger_key

ARN = "arn:aws:sqs:eu-west-1:000000000000:orders"
ATTRIBUTES = {
    "trace": Attribute("String", "t-1"),
    "n": Attribute("Number.int", "7"),
    "raw": Attribute("Binary", base64=b"\0\xff"),
}
MESSAGE = Message("m-1", "r-1", 'not "JSON" é\n', {"ApproximateReceiveCount": "1"}, ATTRIBUTES)
TEXT = kept_text(MESSAGE, ARN)


def keeping(store, place, text):
    return kept_in_ledger.keeping(store, place, text, alike)


def record_of(once, key):
    return once.ledger.show(key)[0]


def kept(once, key):
    return read_kept(message_in(record_of(once, key))).message


def parked(once, key="a", text=TEXT):
    once.acquire(key).park("card declined")
    full = ledger_key("shop", key)
    if text is not None:
        assert drive(keeping(once.store, Place(full), text), once.store) is None
    return full

"""A loop on SQS by boto3 alone: a message is deleted only after the call has returned. A replay returns, too."""

import json
import logging
import math
import time

import boto3
from shop import charge

from onceward import Busy, ResultUnavailable, StoreError

LOG = logging.getLogger("shop")
sqs = boto3.client("sqs")
url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]


def handle(message: dict) -> None:
    """Handle a message, and delete it if it is done."""
    receipt = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    try:
        charge(json.loads(message["Body"]))
    except Busy as busy:  # another worker has it, or had it and died
        sqs.change_message_visibility(**receipt, VisibilityTimeout=math.ceil(busy.retry_after))
        return
    except ResultUnavailable:  # it is done, and only its result cannot be read: delete it
        pass
    except StoreError:  # nothing ran. Do not use up the receives of other messages
        LOG.exception("the ledger")
        time.sleep(10)
        return
    except Exception:  # your error, Parked, Mismatch, KeyMissing, ...: not done, so not deleted
        LOG.exception("message %s", message["MessageId"])
        return
    sqs.delete_message(**receipt)  # it returned: the effect is recorded, now or before
    print("deleted", message["Body"])


while True:
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=1, WaitTimeSeconds=20)
    for message in received.get("Messages", []):
        handle(message)

"""What names a queue of SQS, and what the client of queues loads."""

import subprocess
import sys

import pytest

from onceward.aws.sqs.queue import Queue
from onceward.aws.sqs.queue_steps import Address, address_of
from tables import each

OWN = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@each(
    ("queue", "address"),
    [
        ("orders", Address("orders")),
        ("orders.fifo", Address("orders.fifo")),
        ("arn:aws:sqs:eu-west-1:123456789012:orders", Address("orders", None, "123456789012", "eu-west-1")),
        (OWN, Address("orders", OWN, None, "eu-west-1")),
        (u := "https://sqs.cn-north-1.amazonaws.com.cn/1/a", Address("a", u, None, "cn-north-1")),
        (u := "https://queue.amazonaws.com/1/a", Address("a", u, None, "us-east-1")),
        (u := "https://us-west-2.queue.amazonaws.com/1/a", Address("a", u, None, "us-west-2")),
        (
            u := "https://sqs-fips.us-gov-west-1.amazonaws.com/1/a",
            Address("a", u, None, "us-gov-west-1", "https://sqs-fips.us-gov-west-1.amazonaws.com"),
        ),
        (
            u := "https://vpce-0a-1b.sqs.us-east-1.vpce.amazonaws.com/1/a",
            Address("a", u, None, "us-east-1", "https://vpce-0a-1b.sqs.us-east-1.vpce.amazonaws.com"),
        ),
        (u := "http://localhost:4566/000000000000/a", Address("a", u, None, None, "http://localhost:4566")),
        (
            u := "http://sqs.us-east-1.localhost.localstack.cloud:4566/0/a.fifo",
            Address("a.fifo", u, None, "us-east-1", "http://sqs.us-east-1.localhost.localstack.cloud:4566"),
        ),
    ],
)
def test_what_a_queues_name_tells(queue, address):
    assert address_of(queue) == address
    where = address.region or "eu-west-1"
    assert address_of(queue, where) == address._replace(region=where)


@each(
    "queue",
    [
        "",
        "a b",
        "orders.fif",
        "https://host/",
        "ftp://host/1/a",
        "arn:aws:sns:eu-west-1:1:a",
        "http://[/1/a",
    ],
)
def test_what_is_no_queue_is_told_when_it_is_opened(queue):
    with pytest.raises(ValueError, match="is not a queue: give its URL, its ARN, or its name"):
        Queue(queue)


def test_options_that_cannot_be_are_told_when_it_is_opened(aws):
    with pytest.raises(ValueError, match="is in eu-west-1, and region='us-east-1'"):
        Queue(OWN, region="us-east-1")
    with pytest.raises(ValueError, match="give an endpoint as"):
        Queue(OWN, endpoint="localhost:4566")
    with pytest.raises(ValueError, match="timeout=0"):
        Queue(OWN, timeout=0)


def test_the_client_loads_nothing_that_it_does_not_need():
    code = (
        "import sys, msgspec, onceward; had = set(sys.modules); import onceward.aws.sqs.queue;"
        "print([name for name in sys.modules.keys() - had if name in ('asyncio', 'ssl', 'email', 'http.client', 'urllib.parse',"
        " 'botocore', 'logging', 'concurrent.futures', 'datetime', 'socket')])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"

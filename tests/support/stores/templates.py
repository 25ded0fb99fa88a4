"""Ledgers as code, as tests print them."""

from onceward.aws.templates import Consumer, render
from onceward.stores import open_store
from onceward.stores.capabilities import DOCUMENT, TableSpec

KEY = "arn:aws:kms:eu-west-1:111111111111:key/1"
TOPIC = "arn:aws:sns:eu-west-1:111111111111:oncall"
QUEUE = "arn:aws:sqs:eu-west-1:111111111111:orders"
CASES = {
    "plain": ("dynamodb://orders", TableSpec(), None),
    "mapped": ("dynamodb://orders?blobs=s3://bucket/results", TableSpec(), Consumer("charge", 10, QUEUE)),
    "full": ("dynamodb://orders", TableSpec(frozenset({"pitr"}), KEY), Consumer("charge", 30, None, TOPIC)),
}


def text_of(case: str) -> str:
    url, wanted, consumer = CASES[case]
    return render(DOCUMENT.require(open_store(url))(wanted), consumer)


def sent(proxy, action):
    return [seen.body for seen in proxy.seen if seen.action == action]

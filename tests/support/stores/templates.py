"""Ledgers as code, as tests print them."""

from onceward.stores.capabilities import TableSpec

KEY = "arn:aws:kms:eu-west-1:111111111111:key/1"
CASES = {
    "plain": ("dynamodb://orders", TableSpec()),
    "full": ("dynamodb://orders?blobs=s3://bucket/results", TableSpec(frozenset({"pitr"}), KEY)),
}


def sent(proxy, action):
    return [seen.body for seen in proxy.seen if seen.action == action]

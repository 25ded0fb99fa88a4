"""Ledgers as code, as tests print them."""

import json
import re

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


def text_of(case: str, form: str) -> str:
    url, wanted, consumer = CASES[case]
    return render(form, DOCUMENT.require(open_store(url))(wanted), consumer)


def sent(proxy, action):
    return [seen.body for seen in proxy.seen if seen.action == action]


class Hcl:
    """Enough of Terraform's language to read what is printed: blocks, attributes, strings, lists and references."""

    TOKEN = re.compile(r'\s*(?:#[^\n]*\n\s*)*("(?:[^"\\]|\\.)*"|[\w.]+|[{}()\[\],=])')

    def __init__(self, text):
        self.tokens, at = [], 0
        while at < len(text.rstrip()):
            match = self.TOKEN.match(text, at)
            assert match, text[at : at + 40]
            self.tokens.append(match[1])
            at = match.end()
        self.blocks = self.body()
        assert self.tokens == []

    def body(self):
        entries = []
        while self.tokens and self.tokens[0] != "}":
            head = [self.tokens.pop(0)]
            while self.tokens[0] not in {"{", "="}:
                head.append(json.loads(self.tokens.pop(0)))
            if self.tokens.pop(0) == "=":
                entries.append((head[0], self.value()))
                if self.tokens and self.tokens[0] == ",":
                    self.tokens.pop(0)
            else:
                entries.append((".".join(head), self.body()))
                assert self.tokens.pop(0) == "}"
        return entries

    def value(self):
        token = self.tokens.pop(0)
        if token == "[":
            values = []
            while self.tokens[0] != "]":
                values.append(self.value())
                if self.tokens[0] == ",":
                    self.tokens.pop(0)
            self.tokens.pop(0)
            return values
        if token == "{":
            body = dict(self.body())
            assert self.tokens.pop(0) == "}"
            return body
        if token == "jsonencode":
            assert self.tokens.pop(0) == "("
            encoded = self.value()
            assert self.tokens.pop(0) == ")"
            return encoded
        if token.startswith('"'):
            text = json.loads(token)
            return text.replace("$${", "${").replace("%%{", "%{")
        return {"true": True, "false": False}.get(token, token)

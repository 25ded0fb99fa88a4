"""A server that is DynamoDB to us."""

import json
from pathlib import Path

from servers.needs import dynoxide
from servers.server import Server, asked


class Dynoxide(Server):
    """A running server; its tables are in memory, or in ``path``."""

    def __init__(self, path: Path | None = None) -> None:
        self._program = dynoxide()
        self._options = [] if path is None else ["--db-path", path]
        super().__init__()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _command(self):
        return [self._program, "--host", "127.0.0.1", "--port", self.port, *self._options]

    def ask(self, action: str, **body: object) -> dict:
        scope = "Credential=a/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"
        headers = {"X-Amz-Target": f"DynamoDB_20120810.{action}", "Content-Type": "application/x-amz-json-1.0"}
        headers |= {"X-Amz-Date": "20260101T000000Z", "Authorization": f"AWS4-HMAC-SHA256 {scope}"}
        return json.loads(asked(self.port, "POST", "/", json.dumps(body), headers)[0])

    def table(self, name: str, keys: dict[str, str] | None = None) -> str:
        """Make a table with the key attributes given, HASH first, and an index of messages."""
        keys = keys or {"key": "S"}
        due = {"due_shard": "S", "due_at": "N"}
        index = {"KeySchema": _schema(due), "Projection": {"ProjectionType": "KEYS_ONLY"}}
        self.ask(
            "CreateTable",
            TableName=name,
            AttributeDefinitions=[{"AttributeName": k, "AttributeType": t} for k, t in (keys | due).items()],
            KeySchema=_schema(keys),
            GlobalSecondaryIndexes=[{"IndexName": "onceward_due", **index}],
            BillingMode="PAY_PER_REQUEST",
        )
        return name

    def items(self, table: str) -> list[dict]:
        return self.ask("Scan", TableName=table)["Items"]


def _schema(names):
    return [{"AttributeName": k, "KeyType": kind} for k, kind in zip(names, ["HASH", "RANGE"], strict=False)]

"""A server that is DynamoDB to us."""

import http.client
import json
import subprocess
from pathlib import Path

from servers.needs import dynoxide, free_port, listens
from servers.orphans import watched


class Dynoxide:
    """A running server; its tables are in memory, or in ``path``."""

    def __init__(self, path: Path | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._where = [] if path is None else ["--db-path", str(path)]
        self.start()

    @classmethod
    def at(cls, port: int) -> "Dynoxide":
        """Return the server that another process has started."""
        made = cls.__new__(cls)
        made.port, made.url = port, f"http://127.0.0.1:{port}"
        return made

    @property
    def where(self) -> dict[str, object]:
        """What :meth:`at` needs to know."""
        return {"port": self.port}

    def start(self) -> None:
        """Start it, or after ``stop`` start it again on the same port."""
        self._process = watched(
            subprocess.Popen(
                [dynoxide(), "--host", "127.0.0.1", "--port", str(self.port), *self._where],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for the tests, which stop it
            )
        )
        assert listens(self.port, self._process), "the test server for DynamoDB did not start"

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, action: str, **body: object) -> dict:
        """Send one request past everything of ours."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {
            "X-Amz-Target": f"DynamoDB_20120810.{action}",
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Date": "20260101T000000Z",
            "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/dynamodb/aws4_request, "
            "SignedHeaders=host, Signature=0",
        }
        connection.request("POST", "/", json.dumps(body), headers)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        assert reply.status == 200, answer
        return answer

    def table(self, name: str, keys: dict[str, str] | None = None) -> str:
        """Make a table with the key attributes given, HASH first, and an index of messages."""
        keys = keys or {"key": "S"}
        due = {"due_shard": "S", "due_at": "N"}
        indexes = [
            {"IndexName": "onceward_due", "KeySchema": _schema(due), "Projection": {"ProjectionType": "KEYS_ONLY"}}
        ]
        self.ask(
            "CreateTable",
            TableName=name,
            AttributeDefinitions=[{"AttributeName": k, "AttributeType": t} for k, t in (keys | due).items()],
            KeySchema=_schema(keys),
            GlobalSecondaryIndexes=indexes,
            BillingMode="PAY_PER_REQUEST",
        )
        return name

    def items(self, table: str) -> list[dict]:
        return self.ask("Scan", TableName=table)["Items"]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def _schema(names):
    return [{"AttributeName": k, "KeyType": kind} for k, kind in zip(names, ["HASH", "RANGE"], strict=False)]

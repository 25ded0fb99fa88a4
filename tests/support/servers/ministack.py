"""The server that is the rest of AWS."""

import base64
import contextlib
import io
import json
import os
import signal
import sys
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from places import SOURCES
from servers.needs import REGION, brought, fetched
from servers.server import Server, asked

MINISTACK = "1.5.33"
# In a folder of its own, not among the dev dependencies: it wants one exact botocore, and does without it.
MINISTACK_NEEDS = [f"ministack=={MINISTACK}", "hypercorn==0.18.0", "h11==0.16.0", "h2==4.4.1", "hpack==4.2.0"]
MINISTACK_NEEDS += ["hyperframe==6.1.0", "priority==2.0.0", "wsproto==1.3.2", "PyYAML==6.0.3", "defusedxml==0.7.1"]


def ministack() -> Path:
    """Return the folder that MiniStack is in, fetched with pip once."""

    def fetch(work: Path) -> Path:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", work / "made"]
        brought([*pip, *MINISTACK_NEEDS], work)
        return work / "made"

    return fetched(f"ministack-{MINISTACK}", fetch)


class Ministack(Server):
    """A running server for some of AWS's services or all but DynamoDB. With ``folder``, what it holds survives a restart, but no kill."""

    def __init__(self, *services: str, folder: Path | None = None) -> None:
        super().__init__()
        settings = {"IOT_MTLS_ENABLED": "0", "SFTP_ENABLED": "0", "BIND_HOST": "127.0.0.1"}
        settings |= {"MINISTACK_REGION": REGION, "GATEWAY_PORT": str(self.port), "TMPDIR": str(self._scratch)}
        settings |= {"MINISTACK_HOST": "127.0.0.1", "PYTHONPATH": str(ministack()), "SERVICES": ",".join(services)}
        if folder is not None:
            settings |= {"PERSIST_STATE": "1", "STATE_DIR": str(folder)}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self._environment = inherited | settings
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _command(self):
        return [sys.executable, "-m", "ministack"]

    def restart(self) -> None:
        """Stop it as an operator does, so that its state is written to ``folder``, and start it again."""
        self._process.terminate()
        self._process.wait(60)
        self.kill()
        self.start()

    def kill(self) -> None:
        """Kill it and the functions that run in it."""
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, and ran no functions
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    # --- requests past everything of ours -------------------------------------------------------------------------

    def call(self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
        """Send one request and return the answer's content, which must not be an error."""
        return asked(self.port, method, path, content, headers)[0]

    def ask(self, target: str, **body: object) -> dict:
        """Send one request of AWS's JSON protocol, such as ``ask("AmazonSQS.SendMessage", QueueUrl=..., ...)``."""
        headers = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.0"}
        answer = self.call("POST", "/", json.dumps(body).encode(), headers)
        return json.loads(answer) if answer else {}

    def rest(self, method: str, path: str, **body: object) -> dict:
        """Send one request of AWS's REST-JSON protocol, such as Lambda's."""
        answer = self.call(method, path, json.dumps(body).encode() if body else b"")
        return json.loads(answer) if answer else {}

    # --- SQS ------------------------------------------------------------------------------------------------------

    def queue(self, name: str, dead: "str | None" = None, receives: int = 3, **attributes: object) -> str:
        """Make a queue and return its URL. After so many receives a message goes to the queue at the URL ``dead``."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        if dead is not None:
            policy = {"deadLetterTargetArn": self.queue_arn(dead), "maxReceiveCount": receives}
            attributes["RedrivePolicy"] = json.dumps(policy)
        texts = {key: str(value) for key, value in attributes.items()}
        return self.ask("AmazonSQS.CreateQueue", QueueName=name, Attributes=texts)["QueueUrl"]

    def queue_arn(self, url: str) -> str:
        return self.queue_attributes(url)["QueueArn"]

    def queue_attributes(self, url: str) -> dict[str, str]:
        return self.ask("AmazonSQS.GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]

    def send(self, url: str, body: object, group: str | None = None, dedup: str | None = None) -> str:
        """Send ``body``, as JSON unless it is text; return the message's id."""
        text = body if isinstance(body, str) else json.dumps(body)
        fifo = {} if group is None else {"MessageGroupId": group, "MessageDeduplicationId": dedup or str(uuid.uuid4())}
        return self.ask("AmazonSQS.SendMessage", QueueUrl=url, MessageBody=text, **fifo)["MessageId"]

    def messages(self, url: str) -> list[dict]:
        """Return all messages that ``ReceiveMessage`` gives now; they stay in the queue, and visible."""
        found: dict[str, dict] = {}
        everything = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        everything["MaxNumberOfMessages"] = 10
        while True:  # they are hidden from the next request, and shown again at the end
            got = self.ask("AmazonSQS.ReceiveMessage", QueueUrl=url, VisibilityTimeout=30, **everything)
            if not got.get("Messages"):
                break
            found |= {message["MessageId"]: message for message in got["Messages"]}
        for message in found.values():
            handle = message["ReceiptHandle"]
            self.ask("AmazonSQS.ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
        return list(found.values())

    def left(self, url: str) -> int:
        """Return how many messages the queue has, hidden ones included."""
        shown = self.queue_attributes(url)
        kinds = ("", "NotVisible", "Delayed")
        return sum(int(shown[f"ApproximateNumberOfMessages{kind}"]) for kind in kinds)

    # --- SNS and EventBridge --------------------------------------------------------------------------------------

    def query(self, action: str, **fields: str) -> str:
        """Send one request of AWS's Query protocol to SNS, and return the answer's XML."""
        form = urlencode({"Action": action, "Version": "2010-03-31", **fields}).encode()
        scope = f"AKIATEST/20260101/{REGION}/sns/aws4_request"  # says which service is meant
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
        return self.call("POST", "/", form, headers).decode()

    def topic(self, name: str) -> str:
        fifo = {"Attributes.entry.1.key": "FifoTopic", "Attributes.entry.1.value": "true"}
        answer = self.query("CreateTopic", Name=name, **(fifo if name.endswith(".fifo") else {}))
        return answer.partition("<TopicArn>")[2].partition("</TopicArn>")[0]

    def subscribe(self, topic: str, queue: str, *, raw: bool) -> None:
        """Send a topic's messages to the queue at a URL."""
        more = {"Attributes.entry.1.key": "RawMessageDelivery", "Attributes.entry.1.value": str(raw).lower()}
        self.query("Subscribe", TopicArn=topic, Protocol="sqs", Endpoint=self.queue_arn(queue), **more)

    def bus(self, name: str, queue: str) -> str:
        """Make a bus, all of whose events go to the queue at a URL; return its ARN."""
        arn = self.ask("AWSEvents.CreateEventBus", Name=name)["EventBusArn"]
        pattern = json.dumps({"source": [{"prefix": ""}]})
        self.ask("AWSEvents.PutRule", Name=f"{name}-all", EventBusName=name, EventPattern=pattern)
        targets = [{"Id": "queue", "Arn": self.queue_arn(queue)}]
        self.ask("AWSEvents.PutTargets", Rule=f"{name}-all", EventBusName=name, Targets=targets)
        return arn

    # --- Kinesis --------------------------------------------------------------------------------------------------

    def stream(self, name: str, shards: int = 1) -> str:
        self.ask("Kinesis_20131202.CreateStream", StreamName=name, ShardCount=shards)
        shown = self.ask("Kinesis_20131202.DescribeStreamSummary", StreamName=name)
        return shown["StreamDescriptionSummary"]["StreamARN"]

    def records(self, stream: str) -> list[dict]:
        """Return all records of a stream by its ARN, shard by shard; ``Data`` is decoded."""
        kinesis, found = "Kinesis_20131202", []
        for shard in self.ask(f"{kinesis}.ListShards", StreamARN=stream)["Shards"]:
            where = {"StreamARN": stream, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
            start = self.ask(f"{kinesis}.GetShardIterator", **where)["ShardIterator"]
            found += self.ask(f"{kinesis}.GetRecords", ShardIterator=start)["Records"]
        return [{**one, "Data": base64.b64decode(one["Data"])} for one in found]

    # --- S3 and Firehose ------------------------------------------------------------------------------------------

    def bucket(self, name: str) -> str:
        self.call("PUT", f"/{name}")
        return name

    def objects(self, bucket: str) -> dict[str, bytes]:
        listed = self.call("GET", f"/{bucket}?list-type=2").decode()
        keys = [part.partition("</Key>")[0] for part in listed.split("<Key>")[1:]]
        return {key: self.call("GET", f"/{bucket}/{key}") for key in keys}

    def delivery_stream(self, name: str, bucket: str) -> str:
        """Make a Firehose stream that writes to a bucket, an object for each record."""
        where = {"RoleARN": "arn:aws:iam::000000000000:role/test", "BucketARN": f"arn:aws:s3:::{bucket}"}
        firehose = "Firehose_20150804.CreateDeliveryStream"
        self.ask(firehose, DeliveryStreamName=name, ExtendedS3DestinationConfiguration=where)
        return name

    # --- Lambda ---------------------------------------------------------------------------------------------------

    def function(self, name: str, source: Path, handler: str, timeout: int = 3, **environment: str) -> str:
        """Make a function from one file and return its ARN. Its process is killed when it takes too long, or raises."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.write(source, source.name)
        made = self.rest(
            "POST",
            "/2015-03-31/functions",
            FunctionName=name,
            Runtime=f"python{sys.version_info.major}.{sys.version_info.minor}",
            Role="arn:aws:iam::000000000000:role/test",
            Handler=f"{source.stem}.{handler}",
            Code={"ZipFile": base64.b64encode(packed.getvalue()).decode()},
            Timeout=timeout,
            Environment={"Variables": {"PYTHONPATH": str(SOURCES), "PYTHONWARNINGS": "error", **environment}},
        )
        return made["FunctionArn"]

    def mapping(self, function: str, source: str, **settings: object) -> str:
        """Let a queue or a stream (their ARN) call a function (its ARN); return the mapping's id."""
        settings = {"FunctionResponseTypes": ["ReportBatchItemFailures"], **settings}
        settings |= {"FunctionName": function, "EventSourceArn": source}
        made = self.rest("POST", "/2015-03-31/event-source-mappings", **settings)
        return made["UUID"]

    def forget(self, function: str, *mappings: str) -> None:
        """Delete a function and its mappings; what runs of it is killed."""
        for mapping in mappings:
            self.rest("DELETE", f"/2015-03-31/event-source-mappings/{mapping}")
        self.rest("DELETE", f"/2015-03-31/functions/{quote(function, safe='')}")

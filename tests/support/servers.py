"""The servers that tests talk to: one that is DynamoDB to us, one that is the rest of AWS, and a proxy that can fail."""

import base64
import calendar
import contextlib
import hashlib
import http.client
import io
import itertools
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import pytest

from orphans import watched
from places import ROOT, SOURCES

CACHE = ROOT / ".cache"
REGION = "eu-west-1"  # that of the tests
PACKAGE, VERSION = "@dynoxide/linux-x64", "1.2.1"
INTEGRITY = "sha512-sBHqlxJ9ANkLluFkYRfd5r8Y0ApFew4FhOrlhgRAgD4XzEoFOukEo1nuBTQ1+jTtofqwn4NWQ2k0Tn5mNTjgUg=="


def missing(message: str):
    """Fail in CI, and elsewhere skip, saying what is missing and how to get it."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def needs(command: str, how: str) -> str:
    """Return the path of ``command``. Without it the test fails in CI, and elsewhere is skipped, saying how to get it."""
    path = shutil.which(command)
    if path is None:
        missing(f"{command} is not installed: {how}")
    return path


def dynoxide() -> Path:
    """Return the server's binary, fetched from npm once."""
    binary = CACHE / f"dynoxide-{VERSION}"
    if binary.exists():
        return binary
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        missing("the DynamoDB-compatible test server (dynoxide, from npm) is fetched for Linux on x86-64 only")
    return from_npm(PACKAGE, VERSION, INTEGRITY, "package/dynoxide", binary)


def typescript() -> Path:
    """Return the folder of TypeScript's compiler, fetched from npm once."""
    version = "5.9.3"
    integrity = "sha512-jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw=="
    folder = CACHE / f"typescript-{version}"
    return folder if folder.exists() else from_npm("typescript", version, integrity, "package", folder)


def from_npm(package: str, version: str, integrity: str, member: str, target: Path) -> Path:
    """Fetch a package, check it against its pinned digest, and put a file or folder of it at ``target``."""
    npm = shutil.which("npm")
    if npm is None:
        missing(f"npm is not installed, and {package} comes from it: apt-get install npm")
    CACHE.mkdir(exist_ok=True)
    work = CACHE / f"fetch-{package.rpartition('/')[2]}-{os.getpid()}"
    work.mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            [npm, "pack", "--silent", f"{package}@{version}"], cwd=work, capture_output=True, text=True, timeout=300
        )
        (archive,) = work.glob("*.tgz") if done.returncode == 0 else [None]
        if archive is None:
            missing(f"npm could not fetch {package}@{version}: {done.stderr[-300:]}")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        assert f"sha512-{digest}" == integrity, "what npm sent is not the package that was pinned"
        with tarfile.open(archive) as tar:
            inner = [one for one in tar if one.name == member or one.name.startswith(f"{member}/")]
            tar.extractall(work, inner, filter="data")
        made = work / member
        if made.is_file():
            made.chmod(0o755)
        try:
            made.replace(target)
        except OSError:
            assert target.exists()  # another process was faster
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _number() -> int:
    """Return the number of this process among those that run tests."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def numbers() -> Iterator[int]:
    """Count from a start of this process's own: tables and queues of tests that run beside it have other names."""
    return itertools.count(10**6 * _number())


def _ports() -> Iterator[int]:
    """Give ports of this process's own in turn, so that nobody takes that of a server which is down for a moment."""
    share = 2_500
    first, at = 10_000 + share * (_number() % 4), secrets.randbelow(share)
    return itertools.chain(range(first + at, first + share), itertools.cycle(range(first, first + share)))


_PORTS = _ports()


def free_port(beside: int = 0) -> int:
    """Return a port that nobody has; nor has anybody the one so far above it.

    It is below those that systems give to connections, or one of a test's many connections could take it before its server.
    """
    for port in itertools.islice(_PORTS, 1000):
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + beside if beside else 0))
            return port
    raise AssertionError("this machine has no free port")


def listens(port: int, process: subprocess.Popen) -> bool:
    """Wait until a server that was just started takes connections."""
    for _ in range(2000):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None:
                return False
            time.sleep(0.01)
        else:
            return True
    return False


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

    def table(self, name: str, keys: dict[str, str] | None = None, *, opened: bool = False) -> str:
        """Make a table with the key attributes given, HASH first, and an index of messages; also one of what is ``opened``."""
        keys = keys or {"key": "S"}
        due = {"due_shard": "S", "due_at": "N"}
        indexes = [
            {"IndexName": "onceward_due", "KeySchema": _schema(due), "Projection": {"ProjectionType": "KEYS_ONLY"}}
        ]
        if opened:
            projection = {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["status", "lease_until"]}
            schema = _schema(["open_shard", next(iter(keys))])
            indexes.append({"IndexName": "onceward_open", "KeySchema": schema, "Projection": projection})
            due = due | {"open_shard": "S"}
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


MINISTACK = "1.5.33"
# In a folder of its own, not among the dev dependencies: it wants one exact botocore, and does without it.
MINISTACK_NEEDS = [
    f"ministack=={MINISTACK}",
    "hypercorn==0.18.0",
    "h11==0.16.0",
    "h2==4.4.1",
    "hpack==4.2.0",
    "hyperframe==6.1.0",
    "priority==2.0.0",
    "wsproto==1.3.2",
    "PyYAML==6.0.3",
    "defusedxml==0.7.1",
]


def ministack() -> Path:
    """Return the folder that MiniStack is in, fetched with pip once."""
    folder = CACHE / f"ministack-{MINISTACK}"
    if folder.exists():
        return folder
    CACHE.mkdir(exist_ok=True)
    work = CACHE / f"fetch-ministack-{os.getpid()}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", work, *MINISTACK_NEEDS],
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            missing(f"pip could not fetch ministack, the test server for AWS: {done.stderr[-300:]}")
        try:
            work.rename(folder)
        except OSError:
            assert folder.exists()  # another run was faster
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


class Ministack:
    """A running server for AWS's services other than DynamoDB: SQS, Kinesis, Lambda (as processes), S3 and more.

    What it holds is in memory. With ``folder`` it survives a :meth:`restart` there, but no kill.

    Args:
        services: the services it shall have, such as "s3"; none means all that it knows.
        folder: for its state.
    """

    def __init__(self, *services: str, folder: Path | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._scratch = Path(tempfile.mkdtemp(prefix="ministack-"))  # functions are unpacked here
        settings = {"IOT_MTLS_ENABLED": "0", "SFTP_ENABLED": "0", "BIND_HOST": "127.0.0.1"}
        settings |= {"MINISTACK_REGION": REGION, "GATEWAY_PORT": str(self.port), "TMPDIR": str(self._scratch)}
        settings |= {"MINISTACK_HOST": "127.0.0.1", "PYTHONPATH": str(ministack()), "SERVICES": ",".join(services)}
        if folder is not None:
            settings |= {"PERSIST_STATE": "1", "STATE_DIR": str(folder)}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self._environment = inherited | settings
        self.start()

    @classmethod
    def at(cls, port: int, scratch: str) -> "Ministack":
        """Return the server that another process has started."""
        made = cls.__new__(cls)
        made.port, made.url, made._scratch = port, f"http://127.0.0.1:{port}", Path(scratch)
        return made

    @property
    def where(self) -> dict[str, object]:
        """What :meth:`at` needs to know."""
        return {"port": self.port, "scratch": str(self._scratch)}

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start it, or after ``stop`` start it again on the same port."""
        self._scratch.mkdir(exist_ok=True)
        with (self._scratch / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ministack"],
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # so that its functions' processes can be killed with it
            )
        self._process = watched(process, scratch=self._scratch)
        assert listens(self.port, self._process), "the test server for AWS did not start"

    def restart(self) -> None:
        """Stop it as an operator does, so that its state is written to ``folder``, and start it again."""
        self._process.terminate()
        self._process.wait(60)
        self._kill()
        self.start()

    def stop(self) -> None:
        """Kill it and whatever runs in it."""
        self._kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def log(self) -> str:
        """The last it said, which is where its functions' errors are."""
        return (self._scratch / "log").read_text(errors="replace")[-4000:]

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended by itself, and ran no functions
        self._process.wait()

    # --- requests past everything of ours -------------------------------------------------------------------------

    def call(self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
        """Send one request and return the answer's content, which must not be an error."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, content, dict(headers or {}))
        reply = connection.getresponse()
        answer = reply.read()
        connection.close()
        assert reply.status < 300, answer
        return answer

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
        """Make a queue and return its URL; a name that ends in .fifo makes a FIFO queue.

        Args:
            name: its name.
            dead: the URL of its dead-letter queue.
            receives: after how many receives a message goes there.
            **attributes: as SQS names them, such as ``VisibilityTimeout=5``.
        """
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        if dead is not None:
            attributes["RedrivePolicy"] = json.dumps(
                {"deadLetterTargetArn": self.queue_arn(dead), "maxReceiveCount": receives}
            )
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
        while True:  # they are hidden from the next request, and shown again at the end
            got = self.ask(
                "AmazonSQS.ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=30, **everything
            ).get("Messages", [])
            if not got:
                break
            found |= {message["MessageId"]: message for message in got}
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
        """Make a topic and return its ARN; a name that ends in .fifo makes a FIFO topic."""
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
        """Make a stream and return its ARN."""
        self.ask("Kinesis_20131202.CreateStream", StreamName=name, ShardCount=shards)
        shown = self.ask("Kinesis_20131202.DescribeStreamSummary", StreamName=name)
        return shown["StreamDescriptionSummary"]["StreamARN"]

    def put(self, stream: str, partition: str, data: bytes) -> tuple[str, str]:
        """Put one record in the stream with this ARN; return its shard and its sequence number."""
        text = base64.b64encode(data).decode()
        answer = self.ask("Kinesis_20131202.PutRecord", StreamARN=stream, PartitionKey=partition, Data=text)
        return answer["ShardId"], answer["SequenceNumber"]

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
        """Return all objects of a bucket, by their keys."""
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
        """Make a function from one file and return its ARN; it can import onceward from the source tree.

        It runs with the Python of the tests, in processes of its own. One that takes longer than ``timeout`` seconds is
        killed, and so is one that raised.

        Args:
            name: its name.
            source: the file.
            handler: what in the file is called.
            timeout: in seconds.
            **environment: its environment variables.
        """
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

    def invoke(self, function: str, event: object, *, wait: bool = True) -> tuple[object, bool]:
        """Call a function by its name or ARN and return what it answered, and whether that is an error.

        Without ``wait`` it is an asynchronous invocation: the answer is None, and it is tried again when it fails.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"X-Amz-Invocation-Type": "RequestResponse" if wait else "Event"}
        connection.request(
            "POST", f"/2015-03-31/functions/{quote(function, safe='')}/invocations", json.dumps(event), headers
        )
        reply = connection.getresponse()
        answer = reply.read()
        connection.close()
        assert reply.status < 300, answer
        return json.loads(answer) if answer else None, reply.getheader("X-Amz-Function-Error") is not None

    def mapping(self, function: str, source: str, **settings: object) -> str:
        """Let a queue or a stream (their ARN) call a function; return the mapping's id.

        Args:
            function: its ARN.
            source: the ARN of the queue or stream.
            **settings: as Lambda names them, such as ``BatchSize=10``. Partial batch responses are on unless
                ``FunctionResponseTypes`` says otherwise.
        """
        settings = {"FunctionResponseTypes": ["ReportBatchItemFailures"], **settings}
        made = self.rest(
            "POST", "/2015-03-31/event-source-mappings", FunctionName=function, EventSourceArn=source, **settings
        )
        return made["UUID"]

    def forget(self, function: str, *mappings: str) -> None:
        """Delete a function and its mappings; what runs of it is killed."""
        for mapping in mappings:
            self.rest("DELETE", f"/2015-03-31/event-source-mappings/{mapping}")
        self.rest("DELETE", f"/2015-03-31/functions/{quote(function, safe='')}")


class S3(Ministack):
    """A running server for S3; its objects are in memory."""

    def __init__(self) -> None:
        super().__init__("s3")


class Seen(NamedTuple):
    """A request that came to the proxy; its action is DynamoDB's, or for S3 the method."""

    action: str
    body: dict
    headers: dict[str, str]
    number: int
    path: str = "/"


class Refuse(NamedTuple):
    """Answer with an error of the service's own instead of forwarding."""

    code: str
    status: int = 400
    message: str = "refused by the test"
    more: Mapping[str, object] = MappingProxyType({})  # other members of the answer


class Fault(NamedTuple):
    """What happens to a request: slept before, cut before it is made, or cut after it is made.

    ``reset_reply`` sends half of the reply and resets the connection. ``twice`` forwards it a second time, and answers with
    what came of that. ``late`` cuts it now, and forwards it right before the so many'th request from here; what is left at
    the end is forwarded by :meth:`Proxy.deliver`. ``edit_request`` and ``edit_reply`` change what is sent on. ``raw`` is
    sent in place of the reply, and then the connection is closed.
    """

    delay: float = 0.0
    lose_request: bool = False
    lose_reply: bool = False
    delay_reply: float = 0.0
    reset_reply: bool = False
    twice: bool = False
    late: int = 0
    edit_request: Callable[[dict], dict] | None = None
    edit_reply: Callable[[dict], dict] | None = None
    raw: bytes | None = None


Rule = Callable[[Seen], Refuse | Fault | None]


class Proxy:
    """Forwards to a server, counts, and fails as its ``rule`` says.

    Attributes:
        seen: every request, in order.
        rule: called with each; None lets it through.
        date: what the answers' Date header shall show (seconds since the epoch); None leaves it as it is.
        dateless: whether the answers shall have no Date header.
        tolerance: how many seconds a request's X-Amz-Date may be off before it is refused as AWS does; None never is.
    """

    def __init__(self, port: int) -> None:
        self.seen: list[Seen] = []
        self.rule: Rule = lambda seen: None
        self.date: Callable[[], float] | None = None
        self.dateless = False
        self.tolerance: float | None = None
        self._late: list[tuple[int, _Forwarded]] = []
        self._upstream = port
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            asked = proxy
            upstream_port = port

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *args: object) -> None:
                pass  # a client that went away is part of the tests

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def now(self) -> float:
        """Return the time that the server shows."""
        return time.time() if self.date is None else self.date()

    @property
    def actions(self) -> list[str]:
        return [seen.action for seen in self.seen]

    def clear(self) -> None:
        self.seen.clear()
        self.rule = lambda seen: None
        self.date = None
        self.dateless = False
        self.tolerance = None
        self._late.clear()

    def deliver(self) -> int:
        """Forward the late requests that have not arrived yet; return how many there were."""
        due = self.due(None)
        connection = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=30)
        for request in due:
            request.on(connection)
        connection.close()
        return len(due)

    def due(self, number: int | None) -> "list[_Forwarded]":
        """Take out the late requests that arrive before the one with ``number``."""
        with self._lock:
            due = [request for at, request in self._late if number is None or at <= number]
            self._late = [] if number is None else [(at, request) for at, request in self._late if at > number]
        return due

    def postpone(self, number: int, request: "_Forwarded") -> None:
        with self._lock:
            self._late.append((number, request))

    def note(self, action: str, body: dict, headers: dict[str, str], path: str) -> Seen:
        with self._lock:
            seen = Seen(action, body, headers, len(self.seen), path)
            self.seen.append(seen)
        return seen

    def skewed(self, signed: str) -> Refuse | None:
        """Return what AWS says of a request that was signed at another time."""
        if self.tolerance is None:
            return None
        now, form = self.now(), "%Y%m%dT%H%M%SZ"
        at = calendar.timegm(time.strptime(signed, form))
        shown, minutes = time.strftime(form, time.gmtime(now)), f"{self.tolerance / 60:g} min."
        if at < now - self.tolerance:
            limit = time.strftime(form, time.gmtime(now - self.tolerance))
            says = f"Signature expired: {signed} is now earlier than {limit} ({shown} - {minutes})"
        elif at > now + self.tolerance:
            limit = time.strftime(form, time.gmtime(now + self.tolerance))
            says = f"Signature not yet current: {signed} is still later than {limit} ({shown} + {minutes})"
        else:
            return None
        return Refuse("InvalidSignatureException", 400, says)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Forwarded(NamedTuple):
    """A request on its way to the server."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes

    def on(self, connection: http.client.HTTPConnection) -> tuple[int, dict[str, str], bytes]:
        kept = {k: v for k, v in self.headers.items() if k.lower() not in {"host", "connection", "content-length"}}
        connection.request(self.method, self.path, self.content, kept)
        reply = connection.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()


_OWN = {"content-type": "application/x-amz-json-1.0", "x-amzn-requestid": "1", "x-amz-request-id": "1"}  # of an error


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    asked: Proxy
    upstream_port: int
    upstream: http.client.HTTPConnection | None = None

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self._in_xml:
            form = dict(parse_qsl(content.decode(), keep_blank_values=True))
            self._serve(form["Action"], form, content)
        else:
            self._serve(self.headers.get("X-Amz-Target", "").rpartition(".")[2], json.loads(content), content)

    @property
    def _in_xml(self) -> bool:
        """Whether errors are XML: of S3, and of services of AWS Query."""
        return self.command != "POST" or "form-urlencoded" in self.headers.get("Content-Type", "")

    def do_GET(self) -> None:
        self._serve("GET", {}, b"")

    def do_PUT(self) -> None:
        self._serve("PUT", {}, self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, action: str, body: dict, content: bytes) -> None:
        proxy = self.asked
        request = _Forwarded(self.command, self.path, dict(self.headers.items()), content)
        seen = proxy.note(action, body, request.headers, self.path)
        for late in proxy.due(seen.number):
            self._forward(late)
        what = proxy.skewed(self.headers.get("X-Amz-Date", "")) or proxy.rule(seen)
        fault = what if isinstance(what, Fault) else Fault()
        time.sleep(fault.delay)
        if fault.lose_request or fault.late:
            if fault.late:
                proxy.postpone(seen.number + fault.late, request)
            self.close_connection = True
            return
        if isinstance(what, Refuse):
            status, headers, answer = what.status, _OWN, self._refusal(what)
        else:
            if fault.edit_request is not None:
                request = request._replace(content=json.dumps(fault.edit_request(body)).encode())
            status, headers, answer = self._forward(request)
            if fault.twice:
                status, headers, answer = self._forward(request)
            if fault.edit_reply is not None:
                headers.pop("x-amz-crc32", None)
                answer = json.dumps(fault.edit_reply(json.loads(answer))).encode()
        time.sleep(fault.delay_reply)
        if fault.lose_reply:
            self.close_connection = True
            return
        if fault.raw is not None:
            self.wfile.write(fault.raw)
            self.close_connection = True
            return
        self.send_response_only(status)
        if not proxy.dateless:
            shown = headers.get("date") if proxy.date is None else None
            self.send_header("Date", shown or formatdate(int(proxy.now()), usegmt=True))
        for name in ("x-amz-crc32", "content-type", "x-amzn-requestid", "x-amz-request-id"):
            if name in headers:
                self.send_header(name, headers[name])
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if fault.reset_reply:
            self.wfile.write(answer[: len(answer) // 2])
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        self.wfile.write(answer)

    def _refusal(self, refuse: Refuse) -> bytes:
        if self._in_xml:
            text = f"<Error><Code>{refuse.code}</Code><Message>{refuse.message}</Message></Error>"
            return f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
        return json.dumps(
            {"__type": f"com.amazonaws.dynamodb.v20120810#{refuse.code}", "message": refuse.message, **refuse.more}
        ).encode()

    def _forward(self, request: _Forwarded) -> tuple[int, dict[str, str], bytes]:
        if self.upstream is None:
            self.upstream = http.client.HTTPConnection("127.0.0.1", self.upstream_port, timeout=30)
        return request.on(self.upstream)

    def finish(self) -> None:
        super().finish()
        if self.upstream is not None:
            self.upstream.close()

    def log_message(self, *args: object) -> None:
        pass

"""What the doctor finds: each rule as a table, and then real queues, functions, tables and files."""

import json

import pytest

from onceward import Policy
from onceward.aws.doctor.checks import Facts, Trigger
from onceward.aws.doctor.look import diagnosis
from onceward.aws.sqs.queue import QueueSettings
from onceward.stores.dynamodb.inspection import Table
from onceward.stores.inspection import InMemory
from onceward.stores.memory import MemoryStore
from onceward.stores.sqlite.inspection import File
from servers.needs import numbers
from servers.proxy import Proxy, Refuse
from tables import each

pytestmark = pytest.mark.sampled(lease=2)

_NUMBERS = numbers()
DAY = 86400
ARN = "arn:aws:sqs:eu-west-1:1:orders"
QUEUE = QueueSettings("orders", ARN, visibility=60, retention=4 * DAY, dead_letters=f"{ARN}-dlq", receives=5)
DEAD = QueueSettings("orders-dlq", f"{ARN}-dlq", retention=14 * DAY)
TABLE = Table("dynamodb://ledger", times=frozenset({"lease_until", "created_at", "fence"}))
FILE = File("/var/lib/orders.db", "ext4", there=True)
TRIGGER = Trigger("charge", timeout=10)
SAFE = Facts(Policy(), QUEUE, DEAD, (TRIGGER,), ledger=TABLE)


def bad(facts):
    return [(finding.level, finding.check) for finding in diagnosis(facts) if finding.level != "ok"]


def test_of_safe_settings_everything_is_ok():
    assert bad(SAFE) == []
    assert {finding.check for finding in diagnosis(SAFE)} >= {"dead letters", "retention", "lease", "TTL"}
    assert bad(SAFE._replace(ledger=FILE, triggers=())) == []


def but(part, facts=SAFE):
    """Return what gives these facts with other settings of one part."""
    return lambda **changes: facts._replace(**{part: getattr(facts, part)._replace(**changes)})


queue, dead, policy, table = map(but, ("queue", "dead", "policy", "ledger"))
file = but("ledger", SAFE._replace(ledger=FILE, triggers=()))
trigger = lambda **changes: SAFE._replace(triggers=(TRIGGER._replace(**changes),))
FIFO = SAFE._replace(
    queue=QUEUE._replace(fifo=True), dead=DEAD._replace(fifo=True), policy=Policy(retention=18.0 * DAY)
)
ALONE = SAFE._replace(dead=None, queue=QUEUE._replace(dead_letters=None, receives=0))
RULES = [
    (ALONE, "error", "dead letters", "SQS drops it 4 d after it was sent, without a trace"),
    (ALONE._replace(policy=Policy(max_attempts=5)), "warning", "dead letters", "its key is parked after 5 attempts"),
    (ALONE._replace(triggers=()), "warning", "dead letters", "keep a message that always fails in the ledger"),
    (SAFE._replace(dead=None), "skipped", "retention", "how long the dead-letter queue holds a message is not known"),
    (dead(fifo=True), "error", "dead letters", "is a FIFO queue, and the other is not"),
    (dead(allows={"redrivePermission": "denyAll"}), "error", "dead letters", "SQS cannot move messages there"),
    (dead(retention=3 * DAY), "error", "dead-letter retention", "counted from when it was first sent"),
    (queue(receives=2), "error", "maxReceiveCount", "good messages become dead letters"),
    (policy(max_attempts=6), "warning", "maxReceiveCount", "the guard's limit is never reached"),
    (policy(retention=300.0), "error", "retention", "all receives of a message may take 6 min"),
    (policy(retention=3.0 * DAY), "error", "retention", "orders keeps messages for 4 d"),
    (policy(lease=121.0), "warning", "lease", "received 2 time(s) in vain"),
    (policy(lease=241.0), "warning", "lease", "unless on_sqs handles them"),
    (policy(lease=241.0)._replace(triggers=()), "error", "lease", "become dead letters without another attempt"),
    (queue(visibility=0)._replace(triggers=()), "error", "visibility", "others receive a message while it is handled"),
    (SAFE._replace(function="refund"), "error", "event source mapping", "nothing of the queue comes to the function"),
    (trigger(partial=False), "error", "partial responses", "deletes them with the others: they are lost"),
    (trigger(timeout=61), "error", "function timeout", "messages come again while they are handled"),
    (trigger(timeout=11), "warning", "function timeout", "visibility timeout of 66 s"),
    (SAFE._replace(ledger=FILE), "error", "ledger", "a disk of its own"),
    (table(status=None), "error", "table", "create it with `onceward init"),
    (table(keys=(("id", "N"),)), "error", "key schema", "the table's key is id (N)"),
    (table(ttl=""), "warning", "TTL", "`onceward init --ttl --store dynamodb://ledger`"),
    (table(ttl="lease_until"), "error", "TTL", "deletes records that are still needed"),
    (table(recovers=False), "warning", "point-in-time recovery", "`aws dynamodb update-continuous-backups"),
    (table(regions=("us-east-1",)), "warning", "global table", "has replicas in us-east-1"),
    (file(kind="nfs4"), "error", "file", "two workers can have one key"),
    (file(kind="tmpfs"), "warning", "file", "gone after a restart"),
    (SAFE._replace(ledger=InMemory(MemoryStore()), triggers=()), "error", "ledger", "gone with its process"),
]


@each(("facts", "level", "check", "text"), RULES)
def test_one_unsafe_setting_is_found_and_nothing_else(facts, level, check, text):
    assert bad(facts) == [(level, check)]
    finding = diagnosis(facts)[0]
    assert text in f"{finding.says} {finding.why} {finding.fix}"
    assert finding.why
    assert finding.fix


@each(
    "facts",
    [
        policy(lease=61.0),
        policy(max_attempts=5),
        dead(allows={"redrivePermission": "byQueue", "sourceQueueArns": [ARN]}),
        FIFO,
        queue(receives=3)._replace(triggers=()),
        table(status="UPDATING"),
        table(ttl=None, recovers=None),
    ],
)
def test_what_is_just_safe_enough_is_ok(facts):
    assert bad(facts) == []


@pytest.fixture
def endpoint(aws, ministack, monkeypatch):
    """Let botocore find the server, as AWS's SDKs are told to."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    return ministack


@pytest.fixture
def cli(endpoint, cli):
    return cli


@pytest.fixture
def orders(endpoint):
    """A queue with safe settings."""
    name = f"doctor-{next(_NUMBERS)}"
    gone = endpoint.queue(f"{name}-dlq", MessageRetentionPeriod=14 * DAY)
    settings = {"VisibilityTimeout": 60, "MessageRetentionPeriod": 4 * DAY}
    return endpoint.queue(name, gone, 5, **settings)


def told(result):
    return {
        (finding["level"], finding["check"]): finding
        for finding in json.loads(result.stdout)["findings"]
        if finding["level"] != "ok"
    }


def test_safe_settings_end_with_status_0_and_unsafe_ones_with_1_say_why_and_what_to_do(cli, endpoint, orders, tmp_path):
    store = f"sqlite:///{tmp_path}/ledger.db"
    assert cli.run("init", "--store", store).returncode == 0
    result = cli.run("doctor", "--queue", orders, "--store", store, "--json")
    assert set(told(result)) <= {("warning", "file")}  # where the tests' folder is in memory
    assert result.returncode == 0
    endpoint.ask("AmazonSQS.SetQueueAttributes", QueueUrl=orders, Attributes={"VisibilityTimeout": "10"})
    result = cli.run("doctor", "--queue", orders)
    what, why, fix, *_, sums = result.stdout.decode().splitlines()
    assert result.returncode == 1
    assert what.startswith("error    lease: a lease is 60 s, and a message of ")
    assert why.startswith("         why: when a worker dies, its messages are received 5 time(s) in vain")
    assert fix.startswith("         fix: give a lease of at most 10 s")
    assert sums.startswith("error 1, ok ")
    assert cli.run("doctor", "--queue", orders, "--lease=10").returncode == 0


def test_a_missing_permission_is_named_and_ends_with_status_2(cli, endpoint, orders):
    between = Proxy(endpoint.port)
    between.rule = lambda seen: Refuse("AccessDeniedException", 403)
    cli.env["AWS_ENDPOINT_URL_SQS"] = between.url
    result = cli.run("doctor", "--queue", orders)
    between.stop()
    assert result.returncode == 2
    assert b"allow sqs:GetQueueAttributes on the queue" in result.stdout


def test_a_table_is_looked_at(cli, dynoxide, table):
    store = f"dynamodb://{table}?endpoint={dynoxide.url}"
    result = cli.run("doctor", "--store", store, "--json")
    # The test server tells nothing of backups.
    assert set(told(result)) == {("warning", "TTL"), ("skipped", "point-in-time recovery")}
    dynoxide.ask(
        "UpdateTimeToLive", TableName=table, TimeToLiveSpecification={"AttributeName": "expires_at", "Enabled": True}
    )
    assert set(told(cli.run("doctor", "--store", store, "--json"))) == {("skipped", "point-in-time recovery")}
    other = cli.run("doctor", "--store", f"{store}&name.expires_at=ttl&name.created_at=expires_at", "--json")
    assert set(told(other)) == {("error", "TTL"), ("skipped", "point-in-time recovery")}


@each(
    ("arguments", "text"),
    [
        ([], "say what to check"),
        (["--store", "memory:", "--function", "f"], "--function needs --queue"),
        (["--store", "memory:", "--lease", "0"], "lease=0.0: give a positive number"),
        (["--queue", "a b"], "is not a queue"),
    ],
)
def test_bad_usage_is_one_clear_line(cli, arguments, text):
    result = cli.run("doctor", *arguments)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert text in result.stderr

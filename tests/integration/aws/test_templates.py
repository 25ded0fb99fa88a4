"""A ledger as code: CloudFormation accepts it, and the test server makes it."""

import json
import subprocess
import sys

import boto3
import pytest

from fixtures import closing_fixture
from onceward import Once
from onceward.aws.doctor.look import Inspection, diagnosis
from onceward.aws.templates import Consumer, render
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.stores import open_store
from onceward.stores.capabilities import DOCUMENT, TableSpec
from onceward.stores.dynamodb.create import provision
from onceward.stores.dynamodb.template import HANDLER, OPERATOR
from onceward.testing.bench import claim_of
from places import ROOT
from servers.needs import REGION, numbers
from stores.templates import CASES, TOPIC, sent, text_of
from tables import each
from waiting import until

_NUMBERS = numbers()
CFN_LINT = [sys.executable, "-c", "import sys; from cfnlint.runner import main; sys.exit(main())"]


def document(case):
    return json.loads(text_of(case))


def of_type(document, kind):
    return {name: one["Properties"] for name, one in document["Resources"].items() if one["Type"] == kind}


def test_cfn_lint_finds_nothing(tmp_path):
    files = [ROOT / "observability" / "cloudwatch-alarms.yaml"]
    for case in CASES:
        files.append(tmp_path / f"{case}.json")
        files[-1].write_text(text_of(case))
    command = [*CFN_LINT, "--regions", REGION, "--", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")


@each("case", ["mapped", "full"])
def test_a_mapping_takes_partial_responses(case):
    (mapping,) = of_type(document(case), "AWS::Lambda::EventSourceMapping").values()
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


@pytest.fixture
def function(ministack, aws, monkeypatch, tmp_path):
    """The name of a Lambda function; its role is ``NAME-role``."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    name, source = f"made-{next(_NUMBERS)}", tmp_path / "app.py"
    source.write_text("def handler(event, context): return {}")
    boto3.client("iam", REGION).create_role(RoleName=f"{name}-role", AssumeRolePolicyDocument="{}")
    ministack.function(name, source, "handler", timeout=30)
    yield name
    ministack.forget(name)


@pytest.fixture
def stack(function):
    """A stack of a ledger and what feeds the function, and the ledger's URL."""
    clouds, table = boto3.client("cloudformation", REGION), f"ledger-{function}"
    # The server knows no autoscaling.
    described = DOCUMENT.require(open_store(f"dynamodb://{table}"))(TableSpec())
    text = render(described, Consumer(function, 30, None, TOPIC))
    role = {"ParameterKey": "FunctionRole", "ParameterValue": f"{function}-role"}
    clouds.create_stack(StackName=table, TemplateBody=text, Parameters=[role], Capabilities=["CAPABILITY_IAM"])
    told = lambda: clouds.describe_stacks(StackName=table)["Stacks"][0]
    until(lambda: not told()["StackStatus"].endswith("IN_PROGRESS"), 120)
    assert told()["StackStatus"] == "CREATE_COMPLETE", told()
    return {one["OutputKey"]: one["OutputValue"] for one in told()["Outputs"]}


def test_a_ledger_that_a_stack_made_works_and_doctor_has_no_objection(stack, function):
    ran = []
    once = Once(stack["LedgerUrl"], name="n")
    for _ in range(2):
        once.run("order-1", lambda: ran.append(1))
    once.acquire("order-2").park("why")
    parked = [record.key for record, _ in once.ledger.records(status="PARKED")]
    once.close()
    assert (ran, parked) == ([1], ["n:order-2"])
    look = Inspection(Policy(), function)
    look.queue(stack["QueueUrl"])
    assert [finding for finding in diagnosis(look.facts) if finding.level in {"error", "warning"}] == []


@pytest.fixture
def name():
    """The name of a table that there is not."""
    return f"init-{next(_NUMBERS)}"


store = closing_fixture(lambda proxy, name: open_store(f"dynamodb://{name}?endpoint={proxy.url}"))
LAYOUTS = [
    "",
    "&partition=pk%3DONCE%23{key}&sort=sk%3DLOCK",
    "&name.expires_at=gone%20%22at%22%20%24{x}%20%C3%BC%3A%23",
]


def template(store, options=frozenset()):
    return json.loads(render(DOCUMENT.require(store)(TableSpec(frozenset(options)))))


def what_init_sent(store, proxy):
    drive(provision(store, set()), store)
    (table,), (ttl,) = (sent(proxy, action) for action in ("CreateTable", "UpdateTimeToLive"))
    return table, ttl["TimeToLiveSpecification"]


@pytest.mark.parametrize("options", LAYOUTS)
def test_cloudformation_says_what_init_sends(options, proxy, name):
    store = open_store(f"dynamodb://{name}?endpoint={proxy.url}{options}")
    printed = template(store, {"pitr"})
    assert proxy.seen == []
    table, ttl = what_init_sent(store, proxy)
    ledger = printed["Resources"]["Ledger"]
    kept = [ledger[name] for name in ("Type", "DeletionPolicy", "UpdateReplacePolicy")]
    assert kept == ["AWS::DynamoDB::Table", "Retain", "Retain"]
    assert ledger["Properties"] == {
        **table,
        "DeletionProtectionEnabled": True,
        "TimeToLiveSpecification": ttl,
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
    }


def statements(store):
    """Who may do what: role → [(actions, resource)]."""
    found = {}
    for name, one in template(store)["Resources"].items():
        if one["Type"] == "AWS::IAM::ManagedPolicy":
            body = one["Properties"]["PolicyDocument"]["Statement"]
            assert {s["Effect"] for s in body} == {"Allow"}
            found[name.removesuffix("Policy").lower()] = [
                (s["Action"], next(iter(s["Resource"].values()))) for s in body
            ]
    return found


def test_templates_grant_the_least_rights_on_the_table_and_on_results_in_s3_if_there_are(store, proxy, name):
    table, index = ["Ledger", "Arn"], (["dynamodb:Query"], "${Ledger.Arn}/index/onceward_due")
    assert statements(store) == {
        "handlers": [([f"dynamodb:{action}" for action in HANDLER], table), index],
        "operators": [([f"dynamodb:{action}" for action in OPERATOR], table), index],
    }
    told = statements(open_store(f"dynamodb://{name}?endpoint={proxy.url}&blobs=s3://bucket/results"))
    arn = "arn:${AWS::Partition}:s3:::bucket"
    assert told["handlers"][2:] == [(["s3:GetObject", "s3:PutObject"], f"{arn}/results/*"), (["s3:ListBucket"], arn)]
    assert told["operators"][2:] == [(["s3:GetObject"], f"{arn}/results/*"), (["s3:ListBucket"], arn)]


def test_handlers_and_operators_need_no_right_that_templates_do_not_grant(store, proxy):
    drive(provision(store, set()), store)
    proxy.clear()
    once = Once(store, name="n")
    once.run("a", lambda: None)
    claim = once.acquire("b", lease=30)
    claim.extend()
    claim.release()
    drive(store.insert_many([claim_of(f"many {n}", "owner") for n in range(3)]), store)
    batches = {"BatchExecuteStatement": {"PartiQLInsert", "PartiQLUpdate"}}
    used = set().union(*(batches.get(action, {action}) for action in proxy.actions))
    assert used <= set(HANDLER)
    proxy.clear()
    ledger = once.ledger
    keys = [record.key for record, _ in ledger.records()]
    ledger.show(keys[0])
    ledger.park("n:b")
    ledger.unpark("n:b")
    ledger.clear("n:b")
    ledger.purge()
    drive(provision(store, set()), store)
    assert set(proxy.actions) <= set(OPERATOR)

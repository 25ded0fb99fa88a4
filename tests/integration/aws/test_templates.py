"""A ledger as code: every form says the same, tools accept it, and the test server makes it."""

import json
import subprocess
import sys

import boto3
import pytest
import yaml

from fixtures import closing_fixture
from onceward import Once
from onceward.aws.doctor.look import diagnosis, facts_of
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
from stores.templates import CASES, TOPIC, Hcl, sent, text_of
from tables import each
from waiting import until

pytestmark = pytest.mark.sampled(form=1)

_NUMBERS = numbers()
PRINTED = ROOT / "tests" / "integration" / "aws" / "printed"
SCHEMA = json.loads((PRINTED / "terraform-schema.json").read_text())["types"]
CFN_LINT = [sys.executable, "-c", "import sys; from cfnlint.runner import main; sys.exit(main())"]


def document(case):
    return yaml.safe_load(text_of(case, "cloudformation"))


def of_type(document, kind):
    return {name: one["Properties"] for name, one in document["Resources"].items() if one["Type"] == kind}


@pytest.mark.parametrize("form", ["cloudformation", "sam"])
def test_cfn_lint_finds_nothing(form, tmp_path):
    files = []
    for case in CASES:
        files.append(tmp_path / f"{case}.yaml")
        files[-1].write_text(text_of(case, form))
    if form == "cloudformation":
        files.append(ROOT / "observability" / "cloudwatch-alarms.yaml")
    command = [*CFN_LINT, "--regions", REGION, "--", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")


@each("case", CASES)
def test_terraform_has_only_what_the_provider_knows_and_all_it_requires(case):
    checked = set()
    for name, body in Hcl(text_of(case, "terraform")).blocks:
        kind, *words = name.split(".")
        if kind in {"resource", "data"}:
            checked.add(words[0])
            check(SCHEMA[words[0]], body, name)
    assert "aws_dynamodb_table" in checked


def check(schema, body, where):
    """Compare a block with the provider's schema; every resource can have a lifecycle and depends_on."""
    names = [name for name, _ in body]
    plain = {name for name, value in body if not isinstance(value, list) or name not in schema["blocks"]}
    known = {*schema["required"], *schema["optional"], "lifecycle", "depends_on"}
    assert plain <= known, (where, plain - known)
    assert {*schema["required"]} <= {*names}, where
    for name, value in body:
        if name in schema["blocks"]:
            check(schema["blocks"][name], value, f"{where}.{name}")


@each("case", ["mapped", "full"])
def test_a_mapping_takes_partial_responses(case):
    (mapping,) = of_type(document(case), "AWS::Lambda::EventSourceMapping").values()
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    events = of_type(yaml.safe_load(text_of(case, "sam")), "AWS::Serverless::Function")["Function"]["Events"]
    assert events["Queue"]["Properties"]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


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
    text = render("cloudformation", described, Consumer(function, 30, None, TOPIC))
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
    facts = facts_of(Policy(), stack["QueueUrl"], function)
    assert [finding for finding in diagnosis(facts) if finding.level in {"error", "warning"}] == []


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


def template(store, kind, options):
    return render(kind, DOCUMENT.require(store)(TableSpec(frozenset(options))))


def what_init_sent(store, proxy):
    drive(provision(store, set()), store)
    (table,), (ttl,) = (sent(proxy, action) for action in ("CreateTable", "UpdateTimeToLive"))
    return table, ttl["TimeToLiveSpecification"]


@pytest.mark.parametrize("options", LAYOUTS)
def test_cloudformation_says_what_init_sends(options, proxy, name):
    store = open_store(f"dynamodb://{name}?endpoint={proxy.url}{options}")
    printed = yaml.safe_load(template(store, "cloudformation", {"pitr"}))
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


@pytest.mark.parametrize("options", LAYOUTS)
def test_terraform_says_what_init_sends(options, proxy, name):
    store = open_store(f"dynamodb://{name}?endpoint={proxy.url}{options}")
    entries = dict(Hcl(template(store, "terraform", {"pitr"})).blocks)["resource.aws_dynamodb_table.ledger"]
    assert proxy.seen == []
    table, ttl = what_init_sent(store, proxy)
    said = dict(entries)
    assert (said["name"], said["billing_mode"]) == (table["TableName"], table["BillingMode"])
    kinds = [(kind, said[name]) for kind, name in (("HASH", "hash_key"), ("RANGE", "range_key")) if name in said]
    assert kinds == [(key["KeyType"], key["AttributeName"]) for key in table["KeySchema"]]
    attributes = [dict(body) for block, body in entries if block == "attribute"]
    assert [{"AttributeName": a["name"], "AttributeType": a["type"]} for a in attributes] == table[
        "AttributeDefinitions"
    ]
    (index,) = table["GlobalSecondaryIndexes"]
    keys = [(f"{key['KeyType'].lower()}_key", key["AttributeName"]) for key in index["KeySchema"]]
    projected = ("projection_type", index["Projection"]["ProjectionType"])
    assert list(said["global_secondary_index"]) == [("name", index["IndexName"]), *keys, projected]
    assert dict(said["ttl"]) == {"attribute_name": ttl["AttributeName"], "enabled": ttl["Enabled"]}
    assert dict(said["point_in_time_recovery"]) == {"enabled": True}
    assert dict(said["lifecycle"]) == {"prevent_destroy": True}


def statements(kind, store, options=frozenset()):
    """Who may do what, as both templates say it: role → [(actions, resource)]."""
    text = template(store, kind, options)
    if kind == "cloudformation":
        found = {}
        for name, one in yaml.safe_load(text)["Resources"].items():
            if one["Type"] == "AWS::IAM::ManagedPolicy":
                body = one["Properties"]["PolicyDocument"]["Statement"]
                assert {s["Effect"] for s in body} == {"Allow"}
                found[name.removesuffix("Policy").lower()] = [
                    (s["Action"], next(iter(s["Resource"].values()))) for s in body
                ]
        return found
    return {
        block.rpartition(".")[2]: [(dict(s)["actions"], dict(s)["resources"][0]) for _, s in body]
        for block, body in Hcl(text).blocks
        if block.startswith("data.aws_iam_policy_document")
    }


TABLE = {"cloudformation": ["Ledger", "Arn"], "terraform": "aws_dynamodb_table.ledger.arn"}
INDEX = {
    "cloudformation": (["dynamodb:Query"], "${Ledger.Arn}/index/onceward_due"),
    "terraform": (["dynamodb:Query"], "${aws_dynamodb_table.ledger.arn}/index/onceward_due"),
}
PARTITION = {"cloudformation": "${AWS::Partition}", "terraform": "${data.aws_partition.here.partition}"}


@pytest.mark.parametrize("kind", ["cloudformation", "terraform"])
def test_templates_grant_the_least_rights_on_the_table_and_on_results_in_s3_if_there_are(kind, store, proxy, name):
    assert statements(kind, store) == {
        "handlers": [([f"dynamodb:{action}" for action in HANDLER], TABLE[kind]), INDEX[kind]],
        "operators": [([f"dynamodb:{action}" for action in OPERATOR], TABLE[kind]), INDEX[kind]],
    }
    store = open_store(f"dynamodb://{name}?endpoint={proxy.url}&blobs=s3://bucket/results")
    arn = f"arn:{PARTITION[kind]}:s3:::bucket"
    told = statements(kind, store)
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

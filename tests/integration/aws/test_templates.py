"""A ledger as code: every form says the same, tools accept it, and the test server makes it."""

import io
import json
import subprocess
import sys
import zipfile

import boto3
import pytest
import yaml

from onceward import Once
from onceward.aws.doctor.look import Inspection, diagnosis
from onceward.aws.templates import Consumer, printed
from onceward.core.policy import Policy
from onceward.observe.cloudwatch import ALARMS
from onceward.stores import open_store
from onceward.stores.capabilities import DOCUMENT, TableWanted
from places import ROOT
from servers.needs import REGION, numbers
from stores.hcl import Hcl
from stores.templates import CASES, QUEUE, TOPIC, text_of
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


# --- each form ------------------------------------------------------------------------------------------------------


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


@each("case", CASES)
def test_terraform_makes_as_many_of_each_as_cloudformation(case):
    kinds = {
        "aws_dynamodb_table": "AWS::DynamoDB::Table",
        "aws_iam_policy": "AWS::IAM::ManagedPolicy",
        "aws_sqs_queue": "AWS::SQS::Queue",
        "aws_cloudwatch_metric_alarm": "AWS::CloudWatch::Alarm",
        "aws_lambda_event_source_mapping": "AWS::Lambda::EventSourceMapping",
    }
    blocks = [name.split(".")[1] for name, _ in Hcl(text_of(case, "terraform")).blocks if name.startswith("resource")]
    ours = [one["Type"] for one in document(case)["Resources"].values()]
    assert sorted(kinds[kind] for kind in blocks if kind in kinds) == sorted(ours)


@pytest.mark.parametrize("form", ["cloudformation", "sam"])
def test_the_outputs_name_the_table_and_the_policies(form):
    outputs = yaml.safe_load(text_of("plain", form))["Outputs"]
    assert outputs.keys() == {"LedgerName", "LedgerArn", "LedgerUrl", "HandlersPolicyArn", "OperatorsPolicyArn"}
    told = dict(Hcl(text_of("plain", "terraform")).blocks)
    assert {name for name in told if name.startswith("output")} == {
        f"output.{name}"
        for name in ("ledger_name", "ledger_arn", "ledger_url", "handlers_policy_arn", "operators_policy_arn")
    }


# --- keys ----------------------------------------------------------------------------------------------


def test_a_key_of_yours_is_used_and_handlers_may_decrypt_with_it():
    (table,) = of_type(document("full"), "AWS::DynamoDB::Table").values()
    key = table["SSESpecification"]["KMSMasterKeyId"]
    policies = of_type(document("full"), "AWS::IAM::ManagedPolicy").values()
    granted = [one for policy in policies for one in policy["PolicyDocument"]["Statement"] if one["Sid"] == "Key"]
    assert [one["Resource"] for one in granted] == [key, key]


# --- what feeds a function ------------------------------------------------------------------------------------------


@each("case", ["mapped", "full"])
def test_a_mapping_takes_partial_responses(case):
    (mapping,) = of_type(document(case), "AWS::Lambda::EventSourceMapping").values()
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    events = of_type(yaml.safe_load(text_of(case, "sam")), "AWS::Serverless::Function")["Function"]["Events"]
    assert events["Queue"]["Properties"]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


def test_a_queue_of_ours_hides_a_message_for_six_timeouts():
    queue = of_type(document("full"), "AWS::SQS::Queue")["Queue"]
    assert queue["VisibilityTimeout"] >= 6 * CASES["full"][2].timeout


def test_a_queue_that_is_there_is_left_alone():
    assert of_type(document("mapped"), "AWS::SQS::Queue") == {}
    (mapping,) = of_type(document("mapped"), "AWS::Lambda::EventSourceMapping").values()
    assert mapping["EventSourceArn"] == QUEUE


def test_all_alarms_of_the_runbook_are_made_and_tell_the_topic():
    made = of_type(document("full"), "AWS::CloudWatch::Alarm")
    assert made.keys() == {one.name for one in ALARMS} | {"DeadLetters"}
    assert {tuple(one["AlarmActions"]) for one in made.values()} == {(TOPIC,)}


# --- made by a server -----------------------------------------------------------------------------------------------


@pytest.fixture
def aws(ministack):
    given = {
        "endpoint_url": ministack.url,
        "region_name": REGION,
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
    }
    return lambda service: boto3.client(service, **given)


@pytest.fixture
def function(aws):
    """The name of a Lambda function; its role is ``NAME-role``."""
    name, content = f"made-{next(_NUMBERS)}", io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("app.py", "def handler(event, context): return {}")
    role = aws("iam").create_role(RoleName=f"{name}-role", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    code = {"ZipFile": content.getvalue()}
    aws("lambda").create_function(
        FunctionName=name, Runtime="python3.12", Role=role, Handler="app.handler", Timeout=30, Code=code
    )
    yield name
    aws("lambda").delete_function(FunctionName=name)


@pytest.fixture
def stack(aws, function):
    """A stack of a ledger and what feeds the function, and the ledger's URL."""
    clouds, table = aws("cloudformation"), f"ledger-{function}"
    # The server knows no autoscaling.
    described = DOCUMENT.needed(open_store(f"dynamodb://{table}"))(TableWanted())
    text = printed("cloudformation", described, Consumer(function, 30, None, TOPIC))
    role = {"ParameterKey": "FunctionRole", "ParameterValue": f"{function}-role"}
    clouds.create_stack(StackName=table, TemplateBody=text, Parameters=[role], Capabilities=["CAPABILITY_IAM"])
    told = lambda: clouds.describe_stacks(StackName=table)["Stacks"][0]
    until(lambda: not told()["StackStatus"].endswith("IN_PROGRESS"), 120)
    assert told()["StackStatus"] == "CREATE_COMPLETE", told()
    return {one["OutputKey"]: one["OutputValue"] for one in told()["Outputs"]}


def test_a_ledger_that_a_stack_made_works_and_doctor_has_no_objection(stack, function, ministack, monkeypatch):
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": REGION}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
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

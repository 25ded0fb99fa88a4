"""A ledger as code: tools accept it, and the test server makes it."""

import json
import subprocess
import sys

import boto3
import pytest

from onceward import Once
from onceward.stores import open_store
from onceward.stores.capabilities import TEMPLATE
from places import ROOT
from servers import REGION, numbers
from waiting import until

_NUMBERS = numbers()
PRINTED = ROOT / "tests" / "integration" / "aws" / "printed"
SCHEMA = json.loads((PRINTED / "terraform-schema.json").read_text())["types"]
CFN_LINT = [sys.executable, "-c", "import sys; from cfnlint.runner import main; sys.exit(main())"]
CASES = {
    "plain": ("dynamodb://orders", set()),
    "results": ("dynamodb://orders?blobs=s3://bucket/results", set()),
    "full": ("dynamodb://orders", {"pitr", "index"}),
}


def text_of(case, form):
    url, options = CASES[case]
    return TEMPLATE.needed(open_store(url))(form, options)


# --- each form ------------------------------------------------------------------------------------------------------


def test_cfn_lint_finds_nothing(tmp_path):
    files = [ROOT / "observability" / "cloudwatch-alarms.yaml"]
    for case in CASES:
        files.append(tmp_path / f"{case}.json")
        files[-1].write_text(text_of(case, "cloudformation"))
    command = [*CFN_LINT, "--regions", REGION, "--", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")


def test_cfn_lint_would_find_a_wrong_property(tmp_path):
    (tmp_path / "wrong.json").write_text(text_of("plain", "cloudformation").replace("BillingMode", "BillingMood"))
    command = [*CFN_LINT, "--regions", REGION, "--", tmp_path / "wrong.json"]
    assert "BillingMood" in subprocess.run(command, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.parametrize("case", CASES)
def test_terraform_has_only_what_the_provider_knows_and_all_it_requires(case):
    made = json.loads(text_of(case, "terraform"))
    kinds = {**made["resource"], **made["data"]}
    for kind, bodies in kinds.items():
        for name, body in bodies.items():
            check(SCHEMA[kind], body, f"{kind}.{name}")
    assert kinds.keys() == {"aws_dynamodb_table", "aws_iam_policy", "aws_partition"}


def check(schema, body, where):
    """Compare a block with the provider's schema; every resource can have a lifecycle."""
    plain = {name for name in body if name not in schema["blocks"]}
    known = {*schema["required"], *schema["optional"], "lifecycle"}
    assert plain <= known, (where, plain - known)
    assert {*schema["required"]} <= {*body}, where
    for name, value in body.items():
        if name in schema["blocks"]:
            for one in value if isinstance(value, list) else [value]:
                check(schema["blocks"][name], one, f"{where}.{name}")


def test_the_outputs_name_the_table_and_the_policies():
    outputs = json.loads(text_of("plain", "cloudformation"))["Outputs"]
    assert outputs.keys() == {"LedgerName", "LedgerArn", "LedgerUrl", "HandlersPolicyArn", "OperatorsPolicyArn"}
    assert {name: one["value"] for name, one in json.loads(text_of("plain", "terraform"))["output"].items()} == {
        "ledger_name": "${aws_dynamodb_table.ledger.name}",
        "ledger_arn": "${aws_dynamodb_table.ledger.arn}",
        "ledger_url": "dynamodb://${aws_dynamodb_table.ledger.name}",
        "handlers_policy_arn": "${aws_iam_policy.handlers.arn}",
        "operators_policy_arn": "${aws_iam_policy.operators.arn}",
    }


# --- made by a server -----------------------------------------------------------------------------------------------


def test_a_ledger_that_a_stack_made_works(ministack, monkeypatch):
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": REGION}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    clouds, table = boto3.client("cloudformation", region_name=REGION), f"ledger-{next(_NUMBERS)}"
    text = TEMPLATE.needed(open_store(f"dynamodb://{table}"))("cloudformation", {"index"})
    clouds.create_stack(StackName=table, TemplateBody=text, Capabilities=["CAPABILITY_IAM"])
    stack = lambda: clouds.describe_stacks(StackName=table)["Stacks"][0]
    until(lambda: not stack()["StackStatus"].endswith("IN_PROGRESS"), 120)
    assert stack()["StackStatus"] == "CREATE_COMPLETE", stack()
    outputs = {one["OutputKey"]: one["OutputValue"] for one in stack()["Outputs"]}
    ran = []
    once = Once(outputs["LedgerUrl"], name="n")
    for _ in range(2):
        once.run("order-1", lambda: ran.append(1))
    once.acquire("order-2").park("why")
    parked = [record.key for record, _ in once.ledger.records(status="PARKED")]
    once.close()
    assert (ran, parked) == ([1], ["n:order-2"])

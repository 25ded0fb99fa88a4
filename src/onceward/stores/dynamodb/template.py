"""The table as code: what ``create.py`` makes, printed as a CloudFormation or Terraform template, with the least rights."""

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, cast

from onceward.stores.capabilities import check_options
from onceward.stores.dynamodb.create import expiry_of, recovery, table_of
from onceward.stores.dynamodb.items import Layout
from onceward.stores.dynamodb.requests import Body
from onceward.stores.dynamodb.store import DynamoStore

# A conditional write needs only the write's right, and TransactWriteItems the rights of its members (docs.aws.amazon.com,
# "DynamoDB API permissions" and "IAM and transactions").
HANDLER: Final = ("GetItem", "PutItem", "UpdateItem", "BatchGetItem", "PartiQLInsert", "PartiQLUpdate")
OPERATOR: Final = ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "Scan", "DescribeTable", "DescribeTimeToLive")


class Grant(NamedTuple):
    """One statement of a policy: actions on the table if ``on`` is empty, else on the S3 resource that it names."""

    name: str
    actions: list[str]
    on: str = ""


Grants = Mapping[str, Sequence[Grant]]  # by role


def template(store: DynamoStore, kind: str, options: AbstractSet[str]) -> str:
    """Return the template of a ledger's table (:data:`onceward.stores.capabilities.TEMPLATE`). Nothing is sent.

    ``kind`` is "cloudformation" (YAML) or "terraform" (HCL), and the option "pitr" asks for point-in-time recovery. Any other
    is a ValueError.
    """
    if "ttl" in options:
        raise ValueError("--ttl is for a table that exists; what --print prints has a TTL in any case")
    check_options(store.url, options, {"pitr"})
    pitr = "pitr" in options
    if kind not in PRINTERS:
        raise ValueError(f"--print {kind!r}: there are {' and '.join(PRINTERS)}")
    return PRINTERS[kind](store.requests.table.rpartition("/")[2], store.layout, _grants(store, pitr=pitr), pitr)


def _grants(store: DynamoStore, *, pitr: bool) -> Grants:
    operator = (*OPERATOR, "DescribeContinuousBackups") if pitr else OPERATOR
    ledger = {
        role: [Grant("Ledger", [f"dynamodb:{action}" for action in actions])]
        for role, actions in (("Handlers", HANDLER), ("Operators", operator))
    }
    blobs = store._blobs  # noqa: SLF001 - of this package
    if blobs is not None:
        bucket = blobs.bucket
        folder = f"{bucket}/{blobs.prefix}/*" if blobs.prefix else f"{bucket}/*"
        for role, actions in (("Handlers", ["s3:GetObject", "s3:PutObject"]), ("Operators", ["s3:GetObject"])):
            ledger[role].append(Grant("Results", actions, folder))
            # Without it S3 answers 403 instead of 404 for an object that is gone.
            ledger[role].append(Grant("LostResults", ["s3:ListBucket"], bucket))
    return ledger


# --- CloudFormation -------------------------------------------------------------------------------------------------


def _cloudformation(table: str, layout: Layout, grants: Grants, pitr: bool) -> str:
    properties: Body = {**table_of(table, layout), "TimeToLiveSpecification": expiry_of(layout)}
    if pitr:
        properties["PointInTimeRecoverySpecification"] = recovery()

    def resource(grant: Grant) -> object:
        return (
            {"Fn::Sub": f"arn:${{AWS::Partition}}:s3:::{grant.on}"} if grant.on else {"Fn::GetAtt": ["Ledger", "Arn"]}
        )

    policies = {
        f"{role}Policy": {
            "Type": "AWS::IAM::ManagedPolicy",
            "Properties": {
                "Description": f"onceward: what {role.lower()} may do to the ledger {table}",
                "PolicyDocument": {
                    "Version": "2012-10-17",
                    "Statement": [
                        {"Sid": one.name, "Effect": "Allow", "Action": one.actions, "Resource": resource(one)}
                        for one in granted
                    ],
                },
            },
        }
        for role, granted in grants.items()
    }
    ledger = {
        "Type": "AWS::DynamoDB::Table",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": properties,
    }
    document = {"AWSTemplateFormatVersion": "2010-09-09", "Resources": {"Ledger": ledger, **policies}}
    head = (
        "# The ledger of onceward, as `onceward init` makes it, and policies for those who use it. Deploy it with\n"
        "# aws cloudformation deploy --stack-name NAME --template-file FILE --capabilities CAPABILITY_IAM\n"
        "# The table stays when the stack is deleted, because without its records everything would run again.\n"
    )
    return head + "\n".join(_yaml(document)) + "\n"


def _yaml(value: object, indent: str = "") -> list[str]:
    """Return mappings, lists and plain values as lines of YAML. Texts are quoted as in JSON, which YAML reads."""
    lines: list[str] = []
    entries: list[tuple[str, object]] = (
        [(f"{key}:", one) for key, one in value.items()]
        if isinstance(value, Mapping)
        else [("-", one) for one in cast("list[object]", value)]
    )
    for head, one in entries:
        if not isinstance(one, Mapping | list):
            lines.append(f"{indent}{head} {_quoted(one)}")
        elif head == "-":
            first, *rest = _yaml(one, f"{indent}  ")
            lines += [f"{indent}- {first.strip()}", *rest]
        else:
            lines += [f"{indent}{head}", *_yaml(one, f"{indent}  ")]
    return lines


# --- Terraform ------------------------------------------------------------------------------------------------------


def _terraform(table: str, layout: Layout, grants: Grants, pitr: bool) -> str:
    made = table_of(table, layout)
    schema = cast("list[Mapping[str, str]]", made["KeySchema"])
    keys = {f"{one['KeyType'].lower()}_key": one["AttributeName"] for one in schema}
    lines = [
        "# The ledger of onceward, as `onceward init` makes it, and policies for those who use it.",
        'resource "aws_dynamodb_table" "ledger" {',
        *_assigned("  ", {"name": table, "billing_mode": made["BillingMode"], **keys}),
    ]
    for part in cast("list[Mapping[str, str]]", made["AttributeDefinitions"]):
        lines += _block("attribute", {"name": part["AttributeName"], "type": part["AttributeType"]})
    expiry = expiry_of(layout)
    lines += _block("ttl", {"attribute_name": expiry["AttributeName"], "enabled": expiry["Enabled"]})
    if pitr:
        lines += _block("point_in_time_recovery", {"enabled": recovery()["PointInTimeRecoveryEnabled"]})
    lines += ["", "  # Without its records everything would run again."]
    lines += [*_block("lifecycle", {"prevent_destroy": True})[1:], "}"]
    if any(one.on for granted in grants.values() for one in granted):
        lines += ["", 'data "aws_partition" "here" {}']
    for role, granted in grants.items():
        name = role.lower()
        lines += ["", f'data "aws_iam_policy_document" "{name}" {{']
        for number, one in enumerate(granted):
            arn = (
                f'"arn:${{data.aws_partition.here.partition}}:s3:::{one.on}"'
                if one.on
                else "aws_dynamodb_table.ledger.arn"
            )
            block = _block("statement", {"sid      ": one.name, "actions  ": one.actions})
            lines += [*block[number == 0 : -1], f"    resources = [{arn}]", block[-1]]
        lines += ["}", "", f'resource "aws_iam_policy" "{name}" {{']
        lines += [f"  name   = {_hcl(f'{table}-{name}')}", f"  policy = data.aws_iam_policy_document.{name}.json", "}"]
    return "\n".join(lines) + "\n"


def _block(name: str, values: Mapping[str, object]) -> list[str]:
    return ["", f"  {name} {{", *_assigned("    ", values), "  }"]


def _assigned(indent: str, values: Mapping[str, object]) -> list[str]:
    width = max(map(len, values))
    return [f"{indent}{name:<{width}} = {_hcl(value)}" for name, value in values.items()]


def _hcl(value: object) -> str:
    return _quoted(value).replace("${", "$${").replace("%{", "%%{")


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


PRINTERS: Final[dict[str, Callable[[str, Layout, Grants, bool], str]]] = {
    "cloudformation": _cloudformation,
    "terraform": _terraform,
}

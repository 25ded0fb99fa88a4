"""The table as code: what ``create.py`` makes, and policies with the least rights.

:func:`document` is CloudFormation's form, and Terraform's is made from it. Both are JSON, which CloudFormation and Terraform read.
"""

import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from onceward.stores.capabilities import check_options
from onceward.stores.dynamodb.create import KNOWN, expiry_of, indexes_of, recovery, table_of
from onceward.stores.dynamodb.indexes import MESSAGES, UNFINISHED
from onceward.stores.dynamodb.requests import Body
from onceward.stores.dynamodb.store import DynamoStore

# A conditional write needs only the write's right, and TransactWriteItems the rights of its members (docs.aws.amazon.com,
# "DynamoDB API permissions" and "IAM and transactions").
# Handlers and operators also query the indexes.
HANDLER: Final = ("GetItem", "PutItem", "UpdateItem", "BatchGetItem", "PartiQLInsert", "PartiQLUpdate")
OPERATOR: Final = (
    *("GetItem", "PutItem", "UpdateItem", "DeleteItem", "BatchGetItem", "PartiQLUpdate", "Scan"),
    *("DescribeTable", "DescribeTimeToLive"),
)
LEDGER: Final = "Ledger"  # the table's name in the document
_GRANTS: Final = {MESSAGES: "Messages", UNFINISHED: "Unfinished"}
_ARN: Final = {"Fn::GetAtt": [LEDGER, "Arn"]}
_TABLE: Final = f"aws_dynamodb_table.{LEDGER.lower()}"  # in Terraform
_REFERENCE: Final = re.compile(r"\$\{([\w:]+)(?:\.Arn)?\}")


class Grant(NamedTuple):
    """One statement of a policy."""

    name: str
    actions: list[str]
    resource: object


def template(store: DynamoStore, form: str, options: AbstractSet[str]) -> str:
    """Return the ledger as code (:data:`onceward.stores.capabilities.TEMPLATE`), as "cloudformation" or "terraform". Nothing is sent."""
    if form not in {"cloudformation", "terraform"}:
        raise ValueError(f"--print {form}: for DynamoDB there are cloudformation and terraform")
    described = document(store, options)
    return json.dumps(described if form == "cloudformation" else _terraform(described), indent=2) + "\n"


def document(store: DynamoStore, options: AbstractSet[str]) -> Body:
    """Return the CloudFormation document. Nothing is sent.

    The options "pitr" and "index" ask for point-in-time recovery and the index of what is not completed. ValueError: another one.
    """
    if "ttl" in options:
        raise ValueError("--ttl is for a table that exists; what --print prints has a TTL in any case")
    check_options(store.url, options, KNOWN)
    indexes = indexes_of(store, options)
    name = store.requests.table.rpartition("/")[2]
    properties: Body = {
        **table_of(name, store.layout, indexes),
        "TimeToLiveSpecification": expiry_of(store.layout),
        "DeletionProtectionEnabled": True,
    }
    if "pitr" in options:
        properties["PointInTimeRecoverySpecification"] = recovery()
    table = {
        "Type": "AWS::DynamoDB::Table",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": properties,
    }
    policies = {
        f"{role}Policy": _policy(role, name, granted) for role, granted in _grants(store, indexes, options).items()
    }
    url = f"dynamodb://${{{LEDGER}}}" + ("?index=open" if store.layout.lists_open or "index" in options else "")
    outputs = {
        "LedgerName": ("The name of the table", {"Ref": LEDGER}),
        "LedgerArn": ("The ARN of the table", _ARN),
        "LedgerUrl": ("What to pass to Once() if the table has default attribute names", {"Fn::Sub": url}),
        "HandlersPolicyArn": ("Attach it to the roles of handlers", {"Ref": "HandlersPolicy"}),
        "OperatorsPolicyArn": ("Attach it to the roles of people", {"Ref": "OperatorsPolicy"}),
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"The ledger {name} of onceward, as onceward init makes it, and policies for those who use it",
        "Resources": {LEDGER: table, **policies},
        "Outputs": {name: {"Description": told, "Value": value} for name, (told, value) in outputs.items()},
    }


def _grants(store: DynamoStore, indexes: Sequence[Body], options: AbstractSet[str]) -> Mapping[str, list[Grant]]:
    """Return what each role may do."""
    operator = (*OPERATOR, "DescribeContinuousBackups") if "pitr" in options else OPERATOR
    roles = {
        role: [Grant("Ledger", [f"dynamodb:{action}" for action in actions], _ARN)]
        for role, actions in (("Handlers", HANDLER), ("Operators", operator))
    }
    for granted in roles.values():
        for index in (one["IndexName"] for one in indexes):
            at = {"Fn::Sub": f"${{{LEDGER}.Arn}}/index/{index}"}
            granted.append(Grant(_GRANTS[index], ["dynamodb:Query"], at))
    blobs = store.blobs
    if blobs is not None:
        if "${" in f"{blobs.bucket}/{blobs.prefix}":  # Fn::Sub would take it for a reference
            raise ValueError(
                f"blobs=s3://{blobs.bucket}/{blobs.prefix}: a template cannot name it, because it has ${{ in it"
            )
        bucket = {"Fn::Sub": f"arn:${{AWS::Partition}}:s3:::{blobs.bucket}"}
        folder = {"Fn::Sub": f"{bucket['Fn::Sub']}/{blobs.prefix}/*" if blobs.prefix else f"{bucket['Fn::Sub']}/*"}
        for role, actions in (("Handlers", ["s3:GetObject", "s3:PutObject"]), ("Operators", ["s3:GetObject"])):
            roles[role].append(Grant("Results", actions, folder))
            # Without it S3 answers 403 instead of 404 for an object that is gone.
            roles[role].append(Grant("LostResults", ["s3:ListBucket"], bucket))
    return roles


def _policy(role: str, table: str, granted: Sequence[Grant]) -> Body:
    statements = [
        {"Sid": one.name, "Effect": "Allow", "Action": one.actions, "Resource": one.resource} for one in granted
    ]
    return {
        "Type": "AWS::IAM::ManagedPolicy",
        "Properties": {
            "Description": f"onceward: what {role.lower()} may do to the ledger {table}",
            "PolicyDocument": {"Version": "2012-10-17", "Statement": statements},
        },
    }


# --- Terraform, whose JSON syntax has a template in each text: version 5 or later of the provider hashicorp/aws ---------


def _terraform(described: Mapping[str, Any]) -> Body:
    """Return the configuration. It has no provider, because yours says the region."""
    resources = described["Resources"]
    policies = {
        name.removesuffix("Policy").lower(): one["Properties"]
        for name, one in resources.items()
        if one["Type"] == "AWS::IAM::ManagedPolicy"
    }
    return {
        "data": {"aws_partition": {"here": {}}},
        "resource": {
            "aws_dynamodb_table": {LEDGER.lower(): _table(resources[LEDGER]["Properties"])},
            "aws_iam_policy": {
                role: {
                    "name": f"${{{_TABLE}.name}}-{role}",
                    "description": _value(one["Description"]),
                    "policy": json.dumps(_value(one["PolicyDocument"])),
                }
                for role, one in policies.items()
            },
        },
        "output": {
            re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): {
                "description": one["Description"],
                "value": _value(one["Value"]),
            }
            for name, one in described["Outputs"].items()
        },
    }


def _table(made: Mapping[str, Any]) -> Body:
    expiry, recovers = made["TimeToLiveSpecification"], made.get("PointInTimeRecoverySpecification")
    indexes = [
        {"name": one["IndexName"], **_keys(one), **_projection(one["Projection"])}
        for one in made["GlobalSecondaryIndexes"]
    ]
    table = {
        "name": made["TableName"],
        "billing_mode": made["BillingMode"],
        **_keys(made),
        "deletion_protection_enabled": made["DeletionProtectionEnabled"],
        "attribute": [{"name": a["AttributeName"], "type": a["AttributeType"]} for a in made["AttributeDefinitions"]],
        "global_secondary_index": indexes,
        "ttl": {"attribute_name": expiry["AttributeName"], "enabled": expiry["Enabled"]},
    }
    if recovers is not None:
        table["point_in_time_recovery"] = {"enabled": recovers["PointInTimeRecoveryEnabled"]}
    values: Body = _value(table)
    return {**values, "lifecycle": {"prevent_destroy": True}}


def _keys(made: Mapping[str, Any]) -> dict[str, str]:
    return {f"{one['KeyType'].lower()}_key": one["AttributeName"] for one in made["KeySchema"]}


def _projection(projected: Mapping[str, Any]) -> dict[str, Any]:
    more = {"non_key_attributes": projected["NonKeyAttributes"]} if "NonKeyAttributes" in projected else {}
    return {"projection_type": projected["ProjectionType"], **more}


def _value(value: Any) -> Any:
    """Return a value of CloudFormation as Terraform has it: references are templates, and plain texts have none."""
    if isinstance(value, str):
        return value.replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, list):
        return [_value(one) for one in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"Ref": name}:
            return _address(name)
        case {"Fn::GetAtt": [name, _]}:
            return _address(f"{name}.Arn")
        case {"Fn::Sub": text}:
            return _REFERENCE.sub(lambda found: _address(found[0][2:-1]), text)
    return {name: _value(one) for name, one in value.items()}


def _address(name: str) -> str:
    if name == "AWS::Partition":
        return "${data.aws_partition.here.partition}"
    if name == LEDGER:
        return f"${{{_TABLE}.name}}"
    if name == f"{LEDGER}.Arn":
        return f"${{{_TABLE}.arn}}"
    return f"${{aws_iam_policy.{name.removesuffix('Policy').lower()}.arn}}"

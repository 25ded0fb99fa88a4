"""The table as a CloudFormation document: what ``create.py`` makes, and policies with the least rights.

``onceward.aws.templates`` prints it for each tool. All forms follow from this one document.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from onceward.stores.capabilities import TableSpec, check_options
from onceward.stores.dynamodb.create import expiry_of, table_of
from onceward.stores.dynamodb.finding import MESSAGES
from onceward.stores.dynamodb.requests import Body
from onceward.stores.dynamodb.store import DynamoStore

# A conditional write needs only the write's right, and TransactWriteItems the rights of its members (docs.aws.amazon.com,
# "DynamoDB API permissions" and "IAM and transactions").
# Handlers and operators also query the index of messages.
# BatchGetItem is for workers of the version before, which run on during a deploy.
HANDLER: Final = ("GetItem", "PutItem", "UpdateItem", "BatchGetItem", "PartiQLInsert", "PartiQLUpdate", "PartiQLSelect")
OPERATOR: Final = (
    *("GetItem", "PutItem", "UpdateItem", "DeleteItem", "BatchGetItem", "PartiQLUpdate", "PartiQLSelect", "Scan"),
    *("DescribeTable", "DescribeTimeToLive"),
)
LEDGER: Final = "Ledger"  # the table's name in the document
_ARN: Final = {"Fn::GetAtt": [LEDGER, "Arn"]}


class Grant(NamedTuple):
    """One statement of a policy."""

    name: str
    actions: list[str]
    resource: object


def document(store: DynamoStore, spec: TableSpec) -> Body:
    """Return the CloudFormation document (:data:`onceward.stores.capabilities.DOCUMENT`). Nothing is sent.

    The option "pitr" asks for point-in-time recovery. ValueError: another one.
    """
    if "ttl" in spec.options:
        raise ValueError("--ttl is for a table that exists; what --print prints has a TTL in any case")
    check_options(store.url, spec.options, {"pitr"})
    name = store.requests.table.rpartition("/")[2]
    properties: Body = {
        **table_of(name, store.layout),
        "TimeToLiveSpecification": expiry_of(store.layout),
        "DeletionProtectionEnabled": True,
    }
    if "pitr" in spec.options:
        properties["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": True}
    if spec.kms_key is not None:
        key = {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": spec.kms_key}
        properties["SSESpecification"] = key
    table = {
        "Type": "AWS::DynamoDB::Table",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": properties,
    }
    policies = {f"{role}Policy": _policy(role, name, granted) for role, granted in _grants(store, spec).items()}
    outputs = {
        "LedgerName": ("The name of the table", {"Ref": LEDGER}),
        "LedgerArn": ("The ARN of the table", _ARN),
        "LedgerUrl": (
            "What to pass to Once() if the table has default attribute names",
            {"Fn::Sub": f"dynamodb://${{{LEDGER}}}"},
        ),
        "HandlersPolicyArn": ("Attach it to the roles of handlers", {"Ref": "HandlersPolicy"}),
        "OperatorsPolicyArn": ("Attach it to the roles of people", {"Ref": "OperatorsPolicy"}),
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"The ledger {name} of onceward, as onceward init makes it, and policies for those who use it",
        "Resources": {LEDGER: table, **policies},
        "Outputs": {name: {"Description": text, "Value": value} for name, (text, value) in outputs.items()},
    }


def _grants(store: DynamoStore, spec: TableSpec) -> Mapping[str, list[Grant]]:
    """Return what each role may do."""
    operator = (*OPERATOR, "DescribeContinuousBackups") if "pitr" in spec.options else OPERATOR
    roles = {
        role: [Grant("Ledger", [f"dynamodb:{action}" for action in actions], _ARN)]
        for role, actions in (("Handlers", HANDLER), ("Operators", operator))
    }
    for granted in roles.values():
        granted.append(Grant("Messages", ["dynamodb:Query"], {"Fn::Sub": f"${{{LEDGER}.Arn}}/index/{MESSAGES}"}))
        if spec.kms_key is not None:
            # DynamoDB asks KMS with the caller's rights ("Using your AWS KMS keys", Developer Guide).
            granted.append(Grant("Key", ["kms:Decrypt", "kms:DescribeKey"], spec.kms_key))
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

"""A document as Terraform, for version 5 or later of the provider hashicorp/aws."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

Values = Mapping[str, Any]
# A block: its head, and its values. A tuple among these has blocks, all else is assigned.
Block = tuple[str, Values]

_HEAD: Final = "# The ledger of onceward, as `onceward init` makes it, and policies for those who use it."
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_REFERENCE: Final = re.compile(r"\$\{([\w:]+)(?:\.(\w+))?\}")
_KINDS: Final = {  # how a type of CloudFormation is called here, and what its ``Ref`` is
    "AWS::DynamoDB::Table": ("aws_dynamodb_table", "name"),
    "AWS::IAM::ManagedPolicy": ("aws_iam_policy", "arn"),
    "AWS::CloudWatch::Alarm": ("aws_cloudwatch_metric_alarm", "arn"),
    "AWS::Lambda::EventSourceMapping": ("aws_lambda_event_source_mapping", "arn"),
    "AWS::SQS::Queue": ("aws_sqs_queue", "url"),
}
_ATTRIBUTES: Final = {"Arn": "arn", "QueueName": "name"}  # of Fn::GetAtt
_PROPERTIES: Final = {  # whose names are others than in CloudFormation
    "OKActions": "ok_actions",
    "QueueName": "name",
    "VisibilityTimeout": "visibility_timeout_seconds",
    "ReceiveMessageWaitTimeSeconds": "receive_wait_time_seconds",
    "MessageRetentionPeriod": "message_retention_seconds",
}


class _Raw(str):
    """An expression as it stands."""

    __slots__ = ()


def terraform(document: Values) -> str:
    """Return the configuration. It has no provider block, because yours says the region."""
    names = _Names(document)
    blocks = "\n\n".join("\n".join(names.lines(*block)) for block in _blocks(names, document))
    return f"{_HEAD}\n\n{blocks}\n"


def _blocks(names: "_Names", document: Values) -> Iterator[Block]:
    for name, one in document.get("Parameters", {}).items():
        yield f'variable "{_snake(name)}"', {"description": one["Description"], "type": _Raw("string")}
    if "${AWS::Partition}" in str(document):
        yield 'data "aws_partition" "here"', {}
    for name, one in document["Resources"].items():
        kind, local, properties = _KINDS[one["Type"]][0], names.local(name), one["Properties"]
        if kind == "aws_iam_policy":
            yield from _policy(local, properties)
            continue
        values = _table(properties) if kind == "aws_dynamodb_table" else _rename(names, properties)
        if one.get("DeletionPolicy") == "Retain":
            values["lifecycle"] = ({"prevent_destroy": True},)
        if "DependsOn" in one:
            attached = [_Raw(f"aws_iam_role_policy_attachment.{names.local(on)}") for on in one["DependsOn"]]
            values["depends_on"] = attached
        yield f'resource "{kind}" "{local}"', values
    for name, one in document["Outputs"].items():
        yield f'output "{_snake(name)}"', {"description": one["Description"], "value": one["Value"]}


def _policy(name: str, properties: Values) -> Iterator[Block]:
    statements = properties["PolicyDocument"]["Statement"]
    blocks = tuple({"sid": one["Sid"], "actions": one["Action"], "resources": [one["Resource"]]} for one in statements)
    yield f'data "aws_iam_policy_document" "{name}"', {"statement": blocks}
    values = {"name": {"Fn::Sub": f"${{Ledger}}-{name}"}, "description": properties["Description"]}
    yield (
        f'resource "aws_iam_policy" "{name}"',
        {**values, "policy": _Raw(f"data.aws_iam_policy_document.{name}.json")},
    )
    for role in properties.get("Roles", ()):
        attached = {"role": role, "policy_arn": _Raw(f"aws_iam_policy.{name}.arn")}
        yield f'resource "aws_iam_role_policy_attachment" "{name}"', attached


def _table(properties: Values) -> dict[str, Any]:
    expiry = properties["TimeToLiveSpecification"]
    values = {
        "name": properties["TableName"],
        "billing_mode": properties["BillingMode"],
        **_keys(properties),
        "deletion_protection_enabled": properties["DeletionProtectionEnabled"],
        "attribute": tuple(
            {"name": part["AttributeName"], "type": part["AttributeType"]}
            for part in properties["AttributeDefinitions"]
        ),
        "global_secondary_index": tuple(
            {"name": index["IndexName"], **_keys(index), "projection_type": index["Projection"]["ProjectionType"]}
            for index in properties.get("GlobalSecondaryIndexes", ())
        ),
        "ttl": ({"attribute_name": expiry["AttributeName"], "enabled": expiry["Enabled"]},),
    }
    if (recovery := properties.get("PointInTimeRecoverySpecification")) is not None:
        values["point_in_time_recovery"] = ({"enabled": recovery["PointInTimeRecoveryEnabled"]},)
    if (key := properties.get("SSESpecification")) is not None:
        values["server_side_encryption"] = ({"enabled": key["SSEEnabled"], "kms_key_arn": key["KMSMasterKeyId"]},)
    return values


def _keys(properties: Values) -> dict[str, str]:
    return {f"{one['KeyType'].lower()}_key": one["AttributeName"] for one in properties["KeySchema"]}


def _rename(names: "_Names", properties: Values) -> dict[str, Any]:
    values = {_PROPERTIES.get(name) or _snake(name): value for name, value in properties.items()}
    if "dimensions" in values:
        pairs = ", ".join(f"{one['Name']} = {names.value(one['Value'])}" for one in values.pop("dimensions"))
        values["dimensions"] = _Raw(f"{{ {pairs} }}")
    return values


class _Names:
    """The addresses of the document's resources, and what refers to them."""

    def __init__(self, document: Values) -> None:
        self.types = {name: one["Type"] for name, one in document["Resources"].items()}

    def local(self, name: str) -> str:
        return _snake(name.removesuffix("Policy") if self.types[name] == "AWS::IAM::ManagedPolicy" else name)

    def address(self, name: str, attribute: str = "") -> str:
        if name == "AWS::Partition":
            return "data.aws_partition.here.partition"
        if name not in self.types:
            return f"var.{_snake(name)}"
        kind, ref = _KINDS[self.types[name]]
        return f"{kind}.{self.local(name)}.{_ATTRIBUTES.get(attribute, ref)}"

    def value(self, value: object) -> str:
        """Return an expression."""
        if isinstance(value, _Raw):
            return value
        if isinstance(value, list):
            return f"[{', '.join(map(self.value, value))}]"
        if not isinstance(value, Mapping):
            return _hcl(value)
        if "Ref" in value:
            return self.address(value["Ref"])
        if "Fn::GetAtt" in value:
            return self.address(*value["Fn::GetAtt"])
        if "Fn::Sub" in value:
            parts = _REFERENCE.split(value["Fn::Sub"])
            texts = [_hcl(text)[1:-1] for text in parts[::3]]
            refs = [f"${{{self.address(name, of or '')}}}" for name, of in zip(parts[1::3], parts[2::3], strict=True)]
            return f'"{"".join(a + b for a, b in zip(texts, [*refs, ""], strict=True))}"'
        inside = ", ".join(f"{name} = {self.value(one)}" for name, one in value.items())
        return f"jsonencode({{ {inside} }})"

    def lines(self, head: str, values: Values, indent: str = "") -> list[str]:
        """Return the lines of a block."""
        if not values:
            return [f"{indent}{head} {{}}"]
        plain = {name: self.value(value) for name, value in values.items() if not isinstance(value, tuple)}
        width = max(map(len, plain), default=0)
        lines = [f"{indent}{head} {{", *(f"{indent}  {name:<{width}} = {value}" for name, value in plain.items())]
        for name, blocks in values.items():
            for block in blocks if isinstance(blocks, tuple) else ():
                lines += [""] * (len(lines) > 1)
                lines += self.lines(name, block, f"{indent}  ")
        return [*lines, f"{indent}}}"]


def _hcl(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _snake(name: str) -> str:
    """Return a name such as KMSMasterKeyId as kms_master_key_id."""
    return "_".join(word.lower() for word in _WORD.findall(name))

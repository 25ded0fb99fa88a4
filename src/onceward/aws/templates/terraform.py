"""A document as Terraform, for version 5 or later of the provider hashicorp/aws."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from onceward.aws.templates.parts import quoted

Values = Mapping[str, Any]
_HEAD: Final = "# The ledger of onceward, as `onceward init` makes it, and policies for those who use it."
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_REFERENCE: Final = re.compile(r"\$\{([\w:]+)(?:\.(\w+))?\}")


class Block(NamedTuple):
    """A block within a resource."""

    name: str
    values: dict[str, Any]


Body = tuple[dict[str, Any], list[Block]]


class ResourceType(NamedTuple):
    """How a type of CloudFormation is called here, and what its ``Ref`` is."""

    name: str
    ref: str
    body: Callable[["_Names", Values], Body]


class _Names:
    """The addresses of the document's resources."""

    def __init__(self, document: Values) -> None:
        self.types = {name: one["Type"] for name, one in document["Resources"].items()}

    def local(self, name: str) -> str:
        return _snake(name.removesuffix("Policy") if self.types[name] == "AWS::IAM::ManagedPolicy" else name)

    def address(self, name: str, attribute: str | None = None) -> str:
        if name == "AWS::Partition":
            return "data.aws_partition.here.partition"
        if name not in self.types:
            return f"var.{_snake(name)}"
        kind = KINDS[self.types[name]]
        return f"{kind.name}.{self.local(name)}.{_ATTRIBUTES.get(attribute or '', kind.ref)}"

    def value(self, value: object) -> str:
        """Return an expression."""
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
            named = [f"${{{self.address(name, of)}}}" for name, of in zip(parts[1::3], parts[2::3], strict=True)]
            return f'"{"".join(a + b for a, b in zip(texts, [*named, ""], strict=True))}"'
        inside = ", ".join(f"{name} = {self.value(one)}" for name, one in value.items())
        return f"jsonencode({{ {inside} }})"


_ATTRIBUTES: Final = {"Arn": "arn", "QueueName": "name"}  # of Fn::GetAtt


def terraform(document: Values) -> str:
    """Return the configuration. It has no provider block, because yours says the region."""
    names = _Names(document)
    lines = [_HEAD]
    for name, one in document.get("Parameters", {}).items():
        lines += [
            *_top("variable", _snake(name)),
            *_assigned("  ", {"description": quoted(one["Description"]), "type": "string"}),
            "}",
        ]
    if "${AWS::Partition}" in str(document):
        lines += ["", 'data "aws_partition" "here" {}']
    for name, one in document["Resources"].items():
        lines += _resource(names, name, one)
    for name, one in document["Outputs"].items():
        told = {"description": quoted(one["Description"]), "value": names.value(one["Value"])}
        lines += [*_top("output", _snake(name)), *_assigned("  ", told), "}"]
    return "\n".join(lines) + "\n"


def _resource(names: _Names, name: str, one: Values) -> list[str]:
    kind = KINDS[one["Type"]]
    if kind.name == "aws_iam_policy":
        return _policy(names, names.local(name), one["Properties"])
    values, blocks = kind.body(names, one["Properties"])
    if one.get("DeletionPolicy") == "Retain":
        blocks.append(Block("lifecycle", {"prevent_destroy": True}))
    if "DependsOn" in one:
        values["depends_on"] = _Raw(
            f"[{', '.join(f'aws_iam_role_policy_attachment.{names.local(on)}' for on in one['DependsOn'])}]"
        )
    return [*_top("resource", kind.name, names.local(name)), *_body(names, "  ", values, blocks), "}"]


class _Raw(str):
    """An expression as it stands."""

    __slots__ = ()


def _body(names: _Names, indent: str, values: Values, blocks: Sequence[Block] = ()) -> list[str]:
    lines = _assigned(indent, {name: _expression(names, value) for name, value in values.items()})
    for block in blocks:
        inner = [one for one in block.values.values() if isinstance(one, Block)]
        plain = {name: one for name, one in block.values.items() if not isinstance(one, Block)}
        lines += ["", f"{indent}{block.name} {{", *_body(names, f"{indent}  ", plain, inner), f"{indent}}}"]
    return lines


def _expression(names: _Names, value: object) -> str:
    return str(value) if isinstance(value, _Raw) else names.value(value)


def _top(*words: str) -> list[str]:
    first, *rest = words
    return ["", f"{first} {' '.join(map(quoted, rest))} {{"]


def _assigned(indent: str, values: Mapping[str, str]) -> list[str]:
    width = max(map(len, values), default=0)
    return [f"{indent}{name:<{width}} = {value}" for name, value in values.items()]


def _hcl(value: object) -> str:
    return quoted(value).replace("${", "$${").replace("%{", "%%{")


# --- each type ------------------------------------------------------------------------------------------------------


def _table(_: _Names, made: Values) -> Body:
    values = {"name": made["TableName"], "billing_mode": made["BillingMode"], **_keys(made)}
    values["deletion_protection_enabled"] = made["DeletionProtectionEnabled"]
    blocks = [
        Block("attribute", {"name": part["AttributeName"], "type": part["AttributeType"]})
        for part in made["AttributeDefinitions"]
    ]
    for index in made.get("GlobalSecondaryIndexes", []):
        told = {"name": index["IndexName"], **_keys(index)}
        told["projection_type"] = index["Projection"]["ProjectionType"]
        blocks.append(Block("global_secondary_index", told))
    expiry = made["TimeToLiveSpecification"]
    blocks.append(Block("ttl", {"attribute_name": expiry["AttributeName"], "enabled": expiry["Enabled"]}))
    if (recovery := made.get("PointInTimeRecoverySpecification")) is not None:
        blocks.append(Block("point_in_time_recovery", {"enabled": recovery["PointInTimeRecoveryEnabled"]}))
    if (key := made.get("SSESpecification")) is not None:
        told = {"enabled": key["SSEEnabled"], "kms_key_arn": key["KMSMasterKeyId"]}
        blocks.append(Block("server_side_encryption", told))
    return values, blocks


def _keys(made: Values) -> dict[str, str]:
    return {f"{one['KeyType'].lower()}_key": one["AttributeName"] for one in made["KeySchema"]}


def _policy(names: _Names, name: str, made: Values) -> list[str]:
    lines = _top("data", "aws_iam_policy_document", name)
    for number, one in enumerate(made["PolicyDocument"]["Statement"]):
        told = {"sid": one["Sid"], "actions": one["Action"], "resources": [one["Resource"]]}
        lines += _body(names, "  ", {}, [Block("statement", told)])[number == 0 :]
    table = names.value({"Fn::Sub": f"${{Ledger}}-{name}"})
    values = {
        "name": table,
        "description": quoted(made["Description"]),
        "policy": f"data.aws_iam_policy_document.{name}.json",
    }
    lines += ["}", *_top("resource", "aws_iam_policy", name), *_assigned("  ", values), "}"]
    for role in made.get("Roles", ()):
        attached = {"role": names.value(role), "policy_arn": f"aws_iam_policy.{name}.arn"}
        lines += [*_top("resource", "aws_iam_role_policy_attachment", name), *_assigned("  ", attached), "}"]
    return lines


def _renamed(**others: str) -> Callable[[_Names, Values], Body]:
    """Return what names each property in Terraform's form, but for ``others``."""

    def body(_: _Names, made: Values) -> Body:
        return {others.get(name, _snake(name)): value for name, value in made.items()}, []

    return body


def _alarm(names: _Names, made: Values) -> Body:
    values, _ = _renamed(OKActions="ok_actions")(names, made)
    pairs = ", ".join(f"{one['Name']} = {names.value(one['Value'])}" for one in values.pop("dimensions"))
    return {**values, "dimensions": _Raw(f"{{ {pairs} }}")}, []


def _none(_: _Names, __: Values) -> Body:
    raise AssertionError("a policy is two resources")


KINDS: Final = {
    "AWS::DynamoDB::Table": ResourceType("aws_dynamodb_table", "name", _table),
    "AWS::IAM::ManagedPolicy": ResourceType("aws_iam_policy", "arn", _none),
    "AWS::CloudWatch::Alarm": ResourceType("aws_cloudwatch_metric_alarm", "arn", _alarm),
    "AWS::Lambda::EventSourceMapping": ResourceType("aws_lambda_event_source_mapping", "arn", _renamed()),
    "AWS::SQS::Queue": ResourceType(
        "aws_sqs_queue",
        "url",
        _renamed(
            QueueName="name",
            VisibilityTimeout="visibility_timeout_seconds",
            ReceiveMessageWaitTimeSeconds="receive_wait_time_seconds",
            MessageRetentionPeriod="message_retention_seconds",
        ),
    ),
}


def _snake(name: str) -> str:
    """Return a name such as KMSMasterKeyId as kms_master_key_id."""
    return "_".join(word.lower() for word in _WORD.findall(name))

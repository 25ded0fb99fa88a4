"""A document as Terraform, for version 5 or later of the provider hashicorp/aws."""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

Values = Mapping[str, Any]

_HEAD: Final = "# The ledger of onceward, as `onceward init` makes it, and policies for those who use it."
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_REFERENCE: Final = re.compile(r"\$\{([\w:]+)(?:\.(\w+))?\}")
_KINDS: Final = {  # how a type of CloudFormation is called here
    "AWS::DynamoDB::Table": "aws_dynamodb_table",
    "AWS::IAM::ManagedPolicy": "aws_iam_policy",
    "AWS::CloudWatch::Alarm": "aws_cloudwatch_metric_alarm",
    "AWS::Lambda::EventSourceMapping": "aws_lambda_event_source_mapping",
    "AWS::SQS::Queue": "aws_sqs_queue",
}
_REFS: Final = {"aws_dynamodb_table": "name", "aws_iam_policy": "arn", "aws_sqs_queue": "url"}  # what a ``Ref`` is
_NAMES: Final = {  # of properties and attributes, where they are others than in CloudFormation
    "OKActions": "ok_actions",
    "QueueName": "name",
    "VisibilityTimeout": "visibility_timeout_seconds",
    "ReceiveMessageWaitTimeSeconds": "receive_wait_time_seconds",
    "MessageRetentionPeriod": "message_retention_seconds",
}


def terraform(document: Values) -> str:
    """Return the configuration. It has no provider block, because yours says the region."""
    blocks = [
        f'variable "{_snake(name)}" {{\n  description = {_hcl(one["Description"])}\n  type        = string\n}}'
        for name, one in document.get("Parameters", {}).items()
    ]
    if "${AWS::Partition}" in str(document):
        blocks.append('data "aws_partition" "here" {}')
    kinds = {name: _KINDS[one["Type"]] for name, one in document["Resources"].items()}
    value = partial(_value, kinds)
    for name, one in document["Resources"].items():
        kind, local, properties = kinds[name], _local(name), one["Properties"]
        if kind == "aws_iam_policy":
            blocks.append(_policy(value, local, properties))
            continue
        body = _table(properties) if kind == "aws_dynamodb_table" else _body(value, one)
        blocks.append(f'resource "{kind}" "{local}" {{\n{body}}}')
    blocks += [
        f'output "{_snake(name)}" {{\n  description = {_hcl(one["Description"])}\n  value       = {value(one["Value"])}\n}}'
        for name, one in document["Outputs"].items()
    ]
    return "\n\n".join([_HEAD, *blocks]) + "\n"


def _policy(value: Callable[[object], str], name: str, properties: Values) -> str:
    statements = "\n".join(
        f"""\
  statement {{
    sid       = {_hcl(one["Sid"])}
    actions   = {_hcl(one["Action"])}
    resources = [{value(one["Resource"])}]
  }}
"""
        for one in properties["PolicyDocument"]["Statement"]
    )
    attached = "".join(
        f"""

resource "aws_iam_role_policy_attachment" "{name}" {{
  role       = {value(role)}
  policy_arn = aws_iam_policy.{name}.arn
}}"""
        for role in properties.get("Roles", ())
    )
    return f"""\
data "aws_iam_policy_document" "{name}" {{
{statements}}}

resource "aws_iam_policy" "{name}" {{
  name        = "${{aws_dynamodb_table.ledger.name}}-{name}"
  description = {_hcl(properties["Description"])}
  policy      = data.aws_iam_policy_document.{name}.json
}}{attached}"""


def _table(properties: Values) -> str:
    parts = "".join(
        f"""
  attribute {{
    name = {_hcl(part["AttributeName"])}
    type = {_hcl(part["AttributeType"])}
  }}
"""
        for part in properties["AttributeDefinitions"]
    )
    (index,) = properties["GlobalSecondaryIndexes"]
    recovery, sealed = "PointInTimeRecoverySpecification" in properties, properties.get("SSESpecification")
    return f"""\
  name                        = {_hcl(properties["TableName"])}
  billing_mode                = {_hcl(properties["BillingMode"])}
{_keys(properties, 27, "  ")}  deletion_protection_enabled = true
{parts}
  global_secondary_index {{
    name            = {_hcl(index["IndexName"])}
{_keys(index, 15, "    ")}    projection_type = {_hcl(index["Projection"]["ProjectionType"])}
  }}

  ttl {{
    attribute_name = {_hcl(properties["TimeToLiveSpecification"]["AttributeName"])}
    enabled        = true
  }}
{_RECOVERY if recovery else ""}{"" if sealed is None else _SEALED.format(_hcl(sealed["KMSMasterKeyId"]))}
  lifecycle {{
    prevent_destroy = true
  }}
"""


_RECOVERY: Final = """
  point_in_time_recovery {
    enabled = true
  }
"""
_SEALED: Final = """
  server_side_encryption {{
    enabled     = true
    kms_key_arn = {}
  }}
"""


def _keys(properties: Values, width: int, indent: str) -> str:
    return "".join(
        f"{indent}{one['KeyType'].lower() + '_key':<{width}} = {_hcl(one['AttributeName'])}\n"
        for one in properties["KeySchema"]
    )


def _body(value: Callable[[object], str], resource: Values) -> str:
    """Return the lines of a queue, a mapping or an alarm."""
    lines = {_NAMES.get(name) or _snake(name): value(one) for name, one in resource["Properties"].items()}
    if lines.pop("dimensions", None):
        pairs = ", ".join(f"{one['Name']} = {value(one['Value'])}" for one in resource["Properties"]["Dimensions"])
        lines["dimensions"] = f"{{ {pairs} }}"
    if "DependsOn" in resource:
        lines["depends_on"] = f"[aws_iam_role_policy_attachment.{', '.join(map(_local, resource['DependsOn']))}]"
    width = max(map(len, lines))
    return "".join(f"  {name:<{width}} = {text}\n" for name, text in lines.items())


def _value(kinds: Mapping[str, str], value: object) -> str:
    """Return an expression. ``kinds`` are those of the resources, by their names in the document."""

    def address(name: str, attribute: str | None = None) -> str:
        if name == "AWS::Partition":
            return "data.aws_partition.here.partition"
        if name not in kinds:
            return f"var.{_snake(name)}"
        part = _REFS[kinds[name]] if attribute is None else _NAMES.get(attribute) or _snake(attribute)
        return f"{kinds[name]}.{_local(name)}.{part}"

    if isinstance(value, list):
        return f"[{', '.join(_value(kinds, one) for one in value)}]"
    if not isinstance(value, Mapping):
        return _hcl(value)
    if "Ref" in value:
        return address(value["Ref"])
    if "Fn::GetAtt" in value:
        return address(*value["Fn::GetAtt"])
    if "Fn::Sub" in value:
        parts = _REFERENCE.split(value["Fn::Sub"])
        refs = [f"${{{address(name, of)}}}" for name, of in zip(parts[1::3], parts[2::3], strict=True)]
        return f'"{"".join(_hcl(text)[1:-1] + ref for text, ref in zip(parts[::3], [*refs, ""], strict=True))}"'
    inside = ", ".join(f"{name} = {_value(kinds, one)}" for name, one in value.items())
    return f"jsonencode({{ {inside} }})"


def _local(name: str) -> str:
    return _snake(name.removesuffix("Policy"))


def _hcl(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _snake(name: str) -> str:
    """Return a name such as KMSMasterKeyId as kms_master_key_id."""
    return "_".join(word.lower() for word in _WORD.findall(name))

"""A document as a stack of the AWS CDK, in Python. Each resource is its typed construct, with the document's logical id."""

import re
from collections.abc import Mapping
from typing import Any, Final

from onceward.aws.templates.yaml_text import quoted

_HEAD: Final = '''"""The ledger of onceward, as `onceward init` makes it, and policies for those who use it. Run: cdk deploy

The table stays when the stack is deleted, because without its records everything would run again.
"""
'''
_SINGULAR: Final = {"GlobalSecondaryIndexes": "GlobalSecondaryIndex", "KeySchema": "KeySchema"}
_FREE: Final = {"PolicyDocument", "RedrivePolicy"}  # the CDK takes any JSON for these
_KEPT: Final = "RemovalPolicy.RETAIN"
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def cdk(document: Mapping[str, Any]) -> str:
    """Return the program of an app with one stack."""
    resources: Mapping[str, Any] = document["Resources"]
    modules = sorted({one["Type"].split("::")[1].lower() for one in resources.values()})
    names = [
        *(["CfnParameter"] if "Parameters" in document else []),
        "App",
        "CfnOutput",
        "Fn",
        "RemovalPolicy",
        "Stack",
    ]
    imports = [f"from aws_cdk import aws_{one}" for one in modules]
    lines = [
        f"from aws_cdk import {', '.join(sorted(names))}",
        *imports,
        "from constructs import Construct",
        "",
        "",
        "class LedgerStack(Stack):",
        "    def __init__(self, scope: Construct, id: str, **kwargs) -> None:",
        f"        super().__init__(scope, id, description={_literal(document['Description'])}, **kwargs)",
    ]
    for name, one in document.get("Parameters", {}).items():
        lines += _assigned(name, "CfnParameter", {"type": one["Type"], "description": one["Description"]})
    for name, one in resources.items():
        lines += _resource(name, one)
    for name, one in document["Outputs"].items():
        lines += [
            "        CfnOutput(",
            f'            self, "{name}", description={_literal(one["Description"])}, value={_value("", one["Value"], "", 3)}',
            "        )",
        ]
    return "\n".join(
        [_HEAD + lines[0], *lines[1:], "", "", "app = App()", 'LedgerStack(app, "onceward")', "app.synth()\n"]
    )


def _resource(name: str, one: Mapping[str, Any]) -> list[str]:
    _, module, kind = one["Type"].split("::")
    construct = f"aws_{module.lower()}.Cfn{kind}"
    lines = [f"        self.{snake(name)} = {construct}(", "            self,", f'            "{name}",']
    for key, value in one["Properties"].items():
        lines.append(f"            {snake(key)}={_value(key, value, construct, 3)},")
    lines.append("        )")
    if one.get("DeletionPolicy") == "Retain":
        lines.append(f"        self.{snake(name)}.apply_removal_policy({_KEPT})")
    lines += [f"        self.{snake(name)}.node.add_dependency(self.{snake(on)})" for on in one.get("DependsOn", ())]
    return lines


def _assigned(name: str, construct: str, values: Mapping[str, str]) -> list[str]:
    given = ", ".join(f"{key}={_literal(value)}" for key, value in values.items())
    return [f'        self.{snake(name)} = {construct}(self, "{name}", {given})']


def _value(key: str, value: object, construct: str, depth: int) -> str:
    """Return an expression. ``construct`` is the class whose property types describe mappings; empty if they are plain JSON."""
    inner, end = "    " * (depth + 1), "    " * depth
    if isinstance(value, list):
        parts = [_value(key, one, construct, depth + 1) for one in value]
        plain = all(isinstance(one, str) for one in value)
        return f"[{', '.join(parts)}]" if plain else "[\n" + "".join(f"{inner}{one},\n" for one in parts) + f"{end}]"
    if not isinstance(value, Mapping):
        return _literal(value)
    if (reference := _referred(value)) is not None:
        return reference
    if construct and key not in _FREE:
        kind = _SINGULAR.get(key, key.removesuffix("s"))
        given = [f"{snake(name)}={_value(name, one, construct, depth + 1)}" for name, one in value.items()]
        return f"{construct}.{kind}Property(\n" + "".join(f"{inner}{one},\n" for one in given) + f"{end})"
    given = [f"{_literal(name)}: {_value(name, one, '', depth + 1)}" for name, one in value.items()]
    return "{\n" + "".join(f"{inner}{one},\n" for one in given) + f"{end}}}"


def _referred(value: Mapping[str, Any]) -> str | None:
    if "Ref" in value:
        name = value["Ref"]
        attribute = "value_as_string" if name == "FunctionRole" else "ref"
        return f"self.{snake(name)}.{attribute}"
    if "Fn::GetAtt" in value:
        name, attribute = value["Fn::GetAtt"]
        return f"self.{snake(name)}.attr_{snake(attribute)}"
    return f"Fn.sub({_literal(value['Fn::Sub'])})" if "Fn::Sub" in value else None


def _literal(value: object) -> str:
    """Return a plain value in Python. A text has double quotes, as formatters write it."""
    return quoted(value) if isinstance(value, str) else repr(value)


def snake(name: str) -> str:
    """Return a name such as KMSMasterKeyId in Python's form, kms_master_key_id."""
    return "_".join(word.lower() for word in _WORD.findall(name))

"""A document as YAML."""

import json
from collections.abc import Mapping
from typing import cast


def yaml_text(document: Mapping[str, object]) -> str:
    """Return a document of mappings, lists and plain values as YAML. Texts are quoted as in JSON, which YAML reads."""
    return "\n".join(_lines(document)) + "\n"


def _lines(value: object, indent: str = "") -> list[str]:
    lines: list[str] = []
    entries: list[tuple[str, object]] = (
        [(f"{key}:", one) for key, one in value.items()]
        if isinstance(value, Mapping)
        else [("-", one) for one in cast("list[object]", value)]
    )
    for head, one in entries:
        if not isinstance(one, Mapping | list):
            lines.append(f"{indent}{head} {quoted(one)}")
        elif head == "-":
            first, *rest = _lines(one, f"{indent}  ")
            lines += [f"{indent}- {first.strip()}", *rest]
        else:
            lines += [f"{indent}{head}", *_lines(one, f"{indent}  ")]
    return lines


def quoted(value: object) -> str:
    """Return a plain value as JSON."""
    return json.dumps(value, ensure_ascii=False)

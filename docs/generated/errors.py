"""Every public error, with its cause and its fix, from the docstrings."""

import inspect
import re
from importlib import import_module

from generated import answers
from generated.docstrings import attributes, plain
from generated.markdown import code, table
from generated.python_api import PUBLIC

_HEAD = """# Errors

Each error says what happened to which key, and what to do next. All are subclasses of `onceward.OncewardError`,
unless the page says otherwise. The pages [SQS workers](sqs.md) and [AWS Lambda](lambda.md) say what a
worker does about each error. The section [HTTP answers](#http-answers) lists what an HTTP client gets.

"""
_ELSEWHERE = (
    ("onceward.stores.contract", "KeepsMessage"),
    ("onceward.stores.contract", "HasUnsent"),
    ("onceward.stores.contract", "DamagedRecord"),
    ("onceward.stores.contract", "NoIndex"),
    ("onceward.aws.sqs.queue", "QueueError"),
    ("onceward.consumers.broker", "BrokerError"),
    ("onceward.errors", "OwnerUsed"),
)


def errors() -> dict[str, type[Exception]]:
    """Return every public error, by its module and name."""
    names = [(module, name) for module, public in PUBLIC.items() for name in public]
    found = {f"{module}.{name}": getattr(import_module(module), name) for module, name in (*names, *_ELSEWHERE)}
    return {name: one for name, one in found.items() if isinstance(one, type) and issubclass(one, Exception)}


def said(error: type[Exception]) -> tuple[str, str, str]:
    """Return what an error means, its cause and its fix."""
    parts = re.fullmatch(
        r"(.*?)\n\nCause: (.*?)\n\nFix: (.*?)(?:\n\nAttributes:.*)?", inspect.getdoc(error) or "", re.DOTALL
    )
    if parts is None:
        raise ValueError(f"{error.__module__}.{error.__name__}: its docstring needs paragraphs `Cause:` and `Fix:`")
    meaning, cause, fix = (plain(part) for part in parts.groups())
    return meaning, cause, fix


def page() -> str:
    """Return the page."""
    return _HEAD + "\n".join([*(_section(name, error) for name, error in errors().items()), answers.part()])


def _section(name: str, error: type[Exception]) -> str:
    meaning, cause, fix = said(error)
    has = attributes(error)
    known = table(("attribute", "what it has"), [(code(one), text) for one, text in has.items()]) if has else ""
    return f"## {error.__name__}\n\n`{name}`\n\n{meaning}\n\n**Cause:** {cause}\n\n**Fix:** {fix}\n\n{known}"

"""Every command with its options, from what the command line knows of itself."""

import inspect
import re
from typing import Any, get_args

import typer

from generated.markdown import code, table
from onceward.cli.app import command_line

_HEAD = """## All commands

`onceward COMMAND --help` prints the same as this section.

"""


def part() -> str:
    """Return the section."""
    found = commands(typer.main.get_command(command_line()))
    return _HEAD + "\n".join(_command(name, found[name]) for name in sorted(found))


def commands(group: Any, before: str = "") -> dict[str, Any]:
    """Return the commands of a group and of the groups in it, by their names, such as "package lambda"."""
    found: dict[str, Any] = {}
    for name, one in group.commands.items():
        inner = commands(one, f"{before}{name} ") if hasattr(one, "commands") else {before + name: one}
        found |= inner
    return found


def _command(name: str, command: Any) -> str:
    with command.make_context(name, [], resilient_parsing=True) as context:
        usage = " ".join(["onceward", name, *command.collect_usage_pieces(context)]).replace("{KEY}", "KEY")
        rows = [_row(one) for one in command.params]
    head = f"### onceward {name}\n\n```text\n{usage}\n```\n\n{_markdown(inspect.cleandoc(command.help))}\n\n"
    return head + table(("option", "meaning", "default"), rows)


def _row(one: Any) -> tuple[str, str, str]:
    if one.param_type_name == "argument":
        return code(one.metavar or one.name.upper()), _markdown(one.help), "" if one.required else _default(one)
    names = ", ".join(code(name) for name in (*one.opts, *one.secondary_opts))
    if not (one.is_flag or one.count):
        names += " " + code(one.metavar or "|".join(get_args(one.type_descriptor.annotation)))
    variable = f" The variable `{one.envvar}` sets it, too." if one.envvar else ""
    return names, _markdown(one.help) + variable, _default(one)


def _default(one: Any) -> str:
    if isinstance(one.show_default, str):
        return one.show_default
    return "" if one.default in (None, False, "", [], ()) else code(one.default)


def _markdown(text: str) -> str:
    """Return a help text without the markup of the terminal, with the exit statuses as a list."""
    text = re.sub(r"\[bold\](.*?)\[/bold\]", r"`\1`", text).replace("\\[", "[")
    return re.sub(r"^(Exit status): (.*)\.$", _listed, text, flags=re.MULTILINE)


def _listed(statuses: re.Match[str]) -> str:
    items = "".join(f"\n- {one}" for one in statuses[2].split("; "))
    return f"{statuses[1]}:\n{items}"

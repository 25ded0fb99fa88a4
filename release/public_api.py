"""Write public-api.txt: every public module, name and signature. `make api` runs this; a test compares.

A module is public if it has `__all__`. Nothing is imported: griffe reads the source. `breaking` compares two such lists.
"""

import ast
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
LISTED = ROOT / "public-api.txt"
RELEASED = (
    ROOT / "release" / "public-api.released.txt"
)  # a release copies the list here; there is none before the first


def api() -> str:
    """Return the list of this tree."""
    package = griffe.load("onceward", search_paths=[ROOT / "src"], allow_inspection=False)
    return "".join(f"{line}\n" for module in _modules(package) for line in _module(module))


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    if module.exports is not None:
        yield module
    for name in sorted(module.modules):
        if not name.startswith("_") and not module.modules[name].is_alias:
            yield from _modules(module.modules[name])


def _module(module: griffe.Module) -> Iterator[str]:
    for name in sorted(map(str, module.exports or ())):
        yield from _lines(f"{module.path}.{name}", _target(module, name))


def _target(module: griffe.Module, name: str) -> griffe.Object | None:
    """Return what a name stands for; None if only a run could tell."""
    try:
        found = module[name]
        found = found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError):
        return None
    return found


def _lines(path: str, found: griffe.Object | None) -> Iterator[str]:
    if isinstance(found, griffe.Class):
        yield f"{path}: class"
        for name, member in sorted(found.all_members.items()):
            is_public = not name.startswith("_") or name in {"__init__", "__call__"}
            if is_public and (member.inherited or not member.is_alias):
                yield from _lines(f"{path}.{name}", member.final_target if member.inherited else member)
    elif isinstance(found, griffe.Function):
        for one in found.overloads or [found]:
            yield f"{path}: {'async ' if 'async' in found.labels else ''}def f({_parameters(one)})"
    else:
        yield f"{path}: value"


def _parameters(function: griffe.Function) -> str:
    """Return the parameters without annotations: mypy and pyright check those."""
    told, star = [], False
    given = list(function.parameters)
    for at, one in enumerate(given):
        kind = one.kind
        if kind is griffe.ParameterKind.keyword_only and not star:
            told.append("*")
            star = True
        if kind is griffe.ParameterKind.var_positional:
            star = True
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        default = "" if stars or one.default is None else f"={one.default}"
        told.append(f"{stars}{one.name}{default}")
        after = given[at + 1].kind if at + 1 < len(given) else None
        if kind is griffe.ParameterKind.positional_only and after is not kind:
            told.append("/")
    return " ".join(", ".join(told).split())


def breaking(old: str, new: str) -> list[str]:
    """Return what in the list ``old`` a caller can no longer rely on, each as the name and what has happened to it."""
    before, now = _by_name(old), _by_name(new)
    found = []
    for name, forms in before.items():
        if name not in now:
            found.append(f"{name} is gone")
        elif forms != now[name]:
            found += [f"{name}: {why}" for form, other in zip_longest(forms, now[name]) if (why := _worse(form, other))]
    return found


def _by_name(text: str) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, form = line.partition(": ")
        lists.setdefault(name, []).append(form)
    return lists


def _worse(old: str | None, new: str | None) -> str | None:
    if old is None or old == new:
        return None
    if new is None or "def" not in old or "def" not in new or old.startswith("async") != new.startswith("async"):
        return f"was {old}, is {new}"
    one, other = (ast.parse(f"{form}: ...").body[0].args for form in (old, new))  # type: ignore[attr-defined]
    places = [argument.arg for argument in one.posonlyargs + one.args]
    if places != [argument.arg for argument in other.posonlyargs + other.args][: len(places)]:
        return f"was {old}, is {new}"
    named, required = _required(one), _required(other)
    if gone := [name for name in named if name not in required]:
        return f"has no parameter {gone[0]}"
    if wanted := [name for name, needed in required.items() if needed and not named.get(name)]:
        return f"requires {wanted[0]}"
    return None


def _required(given: ast.arguments) -> dict[str, bool]:
    """Return the names of parameters, and whether a call must give them."""
    places = given.posonlyargs + given.args
    optional = {argument.arg for argument in places[len(places) - len(given.defaults) :]}
    required = {argument.arg: argument.arg not in optional for argument in places}
    required |= {one.arg: default is None for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    return required | {f"*{one.arg}": False for one in (given.vararg, given.kwarg) if one}


def unannounced(changes: list[str], changelog: str) -> list[str]:
    """Return the changes whose last name the newest section of the changelog does not have under "Breaking"."""
    newest = changelog.split("\n## ")[1]
    told = re.search(r"### Breaking\n(.*?)(?=\n### |\Z)", newest, re.DOTALL)
    words = set(re.findall(r"\w+", told[1])) if told else set()
    return [change for change in changes if re.split(r":| is gone", change)[0].rpartition(".")[2] not in words]


if __name__ == "__main__":
    LISTED.write_text(api(), encoding="utf-8")
    print(f"{LISTED.name}: {len(LISTED.read_text().splitlines())} lines")

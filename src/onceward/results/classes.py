"""Classes by name: how a ledger names a class, and how it is found without importing or calling anything.

Lookups read only the ``__dict__`` of loaded modules and of their classes. Attribute access could run a module's
``__getattr__``, a metaclass or a descriptor.
"""

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from types import ModuleType
from typing import Any, Final, cast

import msgspec

from onceward.core.worker import MAIN

_SPACE_OF_MODULE: Any = vars(ModuleType)["__dict__"]
_SPACE_OF_CLASS: Any = vars(type)["__dict__"]
_BASES: Any = vars(type)["__mro__"]


class NotReplayable(Exception):
    """The value cannot be stored so that it comes back the same."""


def own_name(kind: type) -> str:
    """Return the module and qualified name of a class. A script's module is always ``__main__``."""
    module = kind.__module__
    return f"{'__main__' if module in MAIN else module}:{kind.__qualname__}"


def type_name(kind: type) -> str:
    """Return the name that finds a class again. For a script's class, that is the name to import the script by."""
    return importable_name(own_name(kind))


def importable_name(name: str) -> str:
    """Return the name that finds a class again, from its :func:`own_name`."""
    module, _, qualified = name.partition(":")
    script = _script() if module in MAIN else module
    # A script that was also imported has each class twice, and each needs its own name.
    return name if script in sys.modules else f"{script}:{qualified}"


def has_name(kind: type, name: str) -> bool:
    """Return whether ``name`` is the name of ``kind``. Records of earlier versions have ``__main__`` for a script."""
    return name in {type_name(kind), f"{kind.__module__}:{kind.__qualname__}"}


def loaded_class(name: str, tag: str) -> type:
    """Find the class that a record names, as :func:`type_name` wrote it, among the loaded modules; its kind is ``tag``.

    Raises:
        NotReplayable: it is not loaded, or not of that kind.
    """
    is_kind = KINDS.get(tag)
    if is_kind is None:
        raise NotReplayable(f"the recorded result has a {tag!r}, which this version of onceward does not know")
    module, _, qualified = name.partition(":")
    value: object = sys.modules.get(module)
    if value is None and module == _script():
        value = sys.modules.get("__main__")
    # a generic model is one entry of its module: Page[Order.Line]
    for part in [qualified] if qualified in _space(value) else qualified.split("."):
        value = _space(value).get(part)
    if not issubclass(type(value), type):
        raise NotReplayable(f"the recorded result is a {name}, which is not loaded here; import its module first")
    if not is_kind(cast("type", value)):
        raise NotReplayable(f"the recorded result names {name}, which is no longer a type that is stored")
    return cast("type", value)


def field_names(kind: type) -> Sequence[str] | None:
    """Return the fields of a Struct or dataclass; None for any other class."""
    bases = _BASES.__get__(kind)
    if msgspec.Struct in bases:
        return cast("type[msgspec.Struct]", kind).__struct_fields__
    for base in bases:
        fields = _SPACE_OF_CLASS.__get__(base).get("__dataclass_fields__")
        if fields is not None:
            # what dataclasses.fields() does, without its import
            return [name for name, field in fields.items() if field._field_type.name == "_FIELD"]  # noqa: SLF001 - as above
    return None


def is_model(kind: type) -> bool:
    """Return whether a class is a pydantic model."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and pydantic.BaseModel in _BASES.__get__(kind)


def is_named_tuple(kind: type) -> bool:
    """Return whether a class is a NamedTuple or derived from one."""
    bases = _BASES.__get__(kind)
    return tuple in bases and any("_fields" in _SPACE_OF_CLASS.__get__(base) for base in bases)


# the check of a class, by its tag
KINDS: Final[dict[str, Callable[[type], bool]]] = {
    "$enum": lambda kind: Enum in _BASES.__get__(kind),
    "$namedtuple": is_named_tuple,
    "$pydantic": is_model,
    "$object": lambda kind: field_names(kind) is not None,
}


def _space(thing: object) -> dict[str, object]:
    """Return the namespace of a module or class, without running its code."""
    if issubclass(type(thing), type):
        return cast("dict[str, object]", _SPACE_OF_CLASS.__get__(thing))
    if issubclass(type(thing), ModuleType):
        return cast("dict[str, object]", _SPACE_OF_MODULE.__get__(thing))
    return {}


def _script() -> str:
    """Return the name to import the running script by, such as ``shop.__main__``; ``__main__`` if it has none."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return str(spec.name)
    name = (getattr(main, "__file__", None) or "").replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    return name if name.isidentifier() else "__main__"

"""Keys and fingerprints from input: one input, one key; two inputs, two keys.

A key in the ledger is ``name:key``. Short keys stay readable: the str ``order-42`` is unchanged, the int 1 is ``1``, the str
"1" is ``"1"``, and a tuple is ``(a,b)``. Bytes, and keys over 200 characters, become SHA-256 digests of the same unambiguous
form. An Enum member is ``enum:module.Class.NAME``. One that is also a str or number (StrEnum, IntEnum) is written as that,
because it equals the value in a JSON message.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from typing import Any

from onceward.core.worker import module_name
from onceward.errors import KeyMissing

_LONGEST_CLIENTS = 600  # as LONGEST, for a client's key: 255 by default, and some characters take two or six
LONGEST = 200  # characters of a key that stay readable; DynamoDB takes 2048 bytes, but people read less

_LIKE_ANOTHER = r"[+-]?(\d[\d_]*+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|true|false|null|[+-]?(inf|nan)"


@cache
def _plain() -> Callable[[str], object]:
    """Return a match for a text that stays readable and is not like another type. `import onceward` does not compile it."""
    return re.compile(rf"(?!({_LIKE_ANOTHER})\Z)[A-Za-z0-9_.@/+=~-]+").fullmatch


def ledger_key(name: str, key: object) -> str:
    """Return the key in the ledger.

    Args:
        name: the namespace.
        key: a str, int, UUID, bytes, float, bool or Enum, or a tuple, list or dict of them.

    Raises:
        KeyMissing: the key or a part of it is None or empty.
        TypeError: the key is of another type.
    """
    if type(key) is str and len(key) <= LONGEST and _plain()(key):  # the most common case first
        return f"{name}:{key}"
    try:
        return f"{name}:{_part(key, name)}"
    except RecursionError:
        raise TypeError(
            f"{name}: a key cannot be made of a value that is nested so deeply, or contains itself"
        ) from None


def scoped_key(name: str, parts: Sequence[object]) -> str:
    """Return the key of an HTTP request in the ledger: ``name:key:scope`` or ``name:key:path:scope``.

    The client's own key comes first and stays readable, so that you can find it by its prefix. Each part has the form of
    :func:`ledger_key`; None is ``*``, the scope of everybody.

    Raises:
        KeyMissing, TypeError: as for :func:`ledger_key`.
    """
    key, *rest = parts
    scope = ["*" if part is None else _part(part, name) for part in rest]
    return ":".join([name, _part(key, name, _LONGEST_CLIENTS), *scope])


def step_name(name: object) -> str:
    """Return the name of a step as its record has it; of the form of :func:`ledger_key`.

    Raises:
        ValueError: the name, or a part of it, is None or empty.
        TypeError: it is of a type that cannot be a key.
    """
    try:
        return _part(name, "step")
    except KeyMissing as error:
        raise ValueError(f'{name!r} cannot name a step: give a text, or a tuple such as ("mail", n)') from error


def kept_key(ledger_key: str, step: str, fence: int) -> str:
    """Return the key of the record that has the result of a step, as the claim with this fence made it."""
    return f"{ledger_key.partition(':')[0]}:step-{derived_key(ledger_key, (step, fence))}"


def may_be_kept(ledger_key: str) -> bool:
    """Return whether a key has the form of :func:`kept_key`. A user's own key can have it, too."""
    digits = "[0-9a-f]"
    return re.fullmatch(rf"[^:]+:step-{digits}{{8}}(-{digits}{{4}}){{3}}-{digits}{{12}}", ledger_key) is not None


def checked_name(name: object) -> str:
    """Return ``name``, or raise ValueError when it cannot be a namespace of keys."""
    # Lone surrogates are not UTF-8.
    if not isinstance(name, str) or not re.fullmatch(r"[^\s:\x00-\x1f\x7f-\x9f\ud800-\udfff]+", name):
        raise ValueError(
            f"name={name!r}: give a name in UTF-8, without white space and without a colon, as in name='billing.charge'"
        )
    return name


def function_name(function: object) -> str:
    """Return the module and qualified name of a function: the default namespace of its keys.

    Raises:
        ValueError: the function is a lambda or a partial, whose name is not unique, or has no module.
    """
    if isinstance(function, partial):
        raise ValueError(  # not a TypeError: only the name is missing
            "a partial has the name of its function, so its keys could equal those of another partial: give name='...'"
        )
    inner = getattr(function, "__func__", function)
    qualified = getattr(inner, "__qualname__", None)
    if qualified is None:  # a callable object
        inner = type(inner)
        qualified = inner.__qualname__
    if "<lambda>" in qualified:
        raise ValueError("a lambda has no name of its own, so its keys could equal another's: give name='...'")
    module = getattr(inner, "__module__", None) or getattr(getattr(inner, "__objclass__", None), "__module__", None)
    if module is None:
        raise ValueError(f"{qualified} is of no module, so its keys could equal another's: give name='...'")
    return f"{module_name(module)}.{qualified}"


def fingerprint_of(value: object) -> str:
    """Return the SHA-256 of ``value`` in an unambiguous form. Equal values of equal types have equal fingerprints."""
    from onceward.results.values import canonical

    return _sha256(canonical(value)).hex()


def derived_key(ledger_key: str, parts: Sequence[object]) -> str:
    """Return a UUID made from the key and ``parts``: the same on every attempt, different for other parts."""
    from uuid import UUID

    return str(UUID(bytes=_sha256("\0".join([ledger_key, *(_form(p, "derived") for p in parts)]).encode())[:16]))


def _form(key: object, name: str) -> str:
    """Write a key so that no two different keys have the same text."""
    writer = _FORMS.get(type(key))
    if writer is not None:
        return writer(key, name)
    if key is None:
        raise KeyMissing(
            f"{name}: the key, or a part of it, is missing (None). Check that the input has the field it names"
        )
    if isinstance(key, Enum) and not isinstance(key, _VALUES):
        kind, member = type(key), key.name or f"{key.value!r}"  # a Flag can have members without a name
        return f"enum:{_text(f'{module_name(kind.__module__)}.{kind.__qualname__}.{member}')}"
    uuid = sys.modules.get("uuid")  # loaded if the key is a UUID
    if uuid is not None and isinstance(key, uuid.UUID):
        return f"uuid:{key}"
    for kind, writer in _FORMS.items():
        if isinstance(key, kind):
            return writer(key, name)
    if isinstance(key, Mapping):
        return _mapping(dict(key), name)
    raise TypeError(
        f"{name}: a key cannot be made of {type(key).__name__}; give str, int, UUID, bytes, or a tuple of them, as in "
        "key=lambda order: (order.shop, order.number)"
    )


def _part(part: object, name: str, longest: int = LONGEST) -> str:
    """Return the form of a key, or its digest. ``name`` is for errors."""
    if type(part) is str and len(part) <= LONGEST and _plain()(part):  # the most common case first
        return part
    form = _form(part, name)
    return form if len(form) <= longest else f"sha256:{_sha256(form.encode()).hex()}"


def _sha256(data: bytes) -> bytes:
    from hashlib import sha256

    return sha256(data).digest()


def _text(text: str) -> str:
    if _plain()(text):
        return text
    import json

    return json.dumps(text)


def _str(key: object, name: str) -> str:
    text = str.__str__(key)
    if not text.strip():
        raise KeyMissing(
            f"{name}: the key, or a part of it, is an empty str. Check that the input has the field it names"
        )
    return _text(text)


def _int(key: int, _: str) -> str:
    # Python writes an int in decimal up to 4300 digits (sys.set_int_max_str_digits).
    return int.__repr__(key) if key.bit_length() < 10_000 else f"int:{key:x}"


def _float(key: Any, name: str) -> str:
    number = float.__float__(key)  # a subclass can have its own repr
    if number - number != 0:
        raise KeyMissing(f"{name}: the key, or a part of it, is {number}, which cannot tell inputs apart")
    return repr(number)


def _bytes(key: Any, name: str) -> str:
    data = bytes(memoryview(key))
    if not data:
        raise KeyMissing(f"{name}: the key, or a part of it, is empty bytes")
    return f"bytes:{_sha256(data).hex()}"


def _sequence(key: Any, name: str) -> str:
    # the most common parts first
    parts = [part if type(part) is str and _plain()(part) else _form(part, name) for part in key]
    if not parts:
        raise KeyMissing(f"{name}: the key is an empty sequence")
    return f"({','.join(parts)})"


def _mapping(key: Any, name: str) -> str:
    if not key:
        raise KeyMissing(f"{name}: the key is an empty mapping")
    return "{" + ",".join(sorted(f"{_form(k, name)}:{_form(v, name)}" for k, v in key.items())) + "}"


_FORMS: dict[type, Callable[[Any, str], str]] = {
    str: _str,
    bool: lambda key, _: "true" if key else "false",
    int: _int,
    float: _float,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    tuple: _sequence,
    list: _sequence,
    dict: _mapping,
}
_VALUES = tuple(_FORMS)

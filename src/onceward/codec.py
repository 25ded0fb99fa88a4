"""Results to text and back, so that a replay is equal to the first answer and of the same type.

A handler with a precise return annotation stores plain JSON, written and read by msgspec for that type. Without one, or
where the annotation leaves the type open, values that JSON has are stored as plain JSON, and all others in an envelope
that names their types::

    {"$onceward": 1, "value": {"$tuple": [1, {"$datetime": "2026-11-21T08:00:00+00:00"}]}}

Whatever is stored has been read back and compared first. What cannot be stored is :class:`NotReplayable`.
"""

import datetime as dt
import decimal
import math
import sys
import uuid
from collections.abc import Callable, Sequence
from enum import Enum
from typing import cast

import msgspec

ENVELOPE = '{"$onceward":1,'
_INT64 = 1 << 63


class NotReplayable(Exception):
    """The value cannot be stored so that it comes back the same."""


class Codec:
    """How the results of one handler are stored.

    Args:
        annotation: the handler's return type, or ``object`` when it has none.

    Raises:
        TypeError: no value of that type could be stored.
    """

    def __init__(self, annotation: object = object) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=_to_builtin)
        self._decoder: msgspec.json.Decoder[object] | None = None
        if annotation in {object, None} or annotation is type(None):
            return
        try:
            if _is_precise(msgspec.inspect.type_info(annotation)):
                self._decoder = msgspec.json.Decoder(cast("type[object]", annotation), dec_hook=_from_builtin)
        except (TypeError, NotReplayable, AttributeError) as error:
            raise TypeError(
                f"results of type {annotation!r} cannot be recorded: {error}. Return a type that msgspec or pydantic "
                "encodes (dataclass, Struct, TypedDict, the standard types), or leave the annotation out"
            ) from error

    def resolve(self) -> None:
        """Make sure that the codec is ready, before the handler runs."""

    def encode(self, value: object) -> str:
        """Return the text to store.

        Raises:
            NotReplayable: the value would not come back equal and of the same type.
        """
        if self._decoder is not None:
            try:
                data = self._encoder.encode(value)
                if not data.startswith(ENVELOPE.encode()) and _same(self._decoder.decode(data), value):
                    return data.decode()
            except (TypeError, ValueError, msgspec.MsgspecError, RecursionError, OverflowError):
                pass  # not of its annotated type; stored by its own type instead
            return _encode_open(value, enveloped=True)
        return _encode_open(value, enveloped=False)

    def decode(self, text: str) -> object:
        """Return the value stored as ``text``.

        Raises:
            NotReplayable: the text does not fit the annotation, or names a type that is not loaded.
        """
        if text.startswith(ENVELOPE):
            return _decode_open(text)
        try:
            if self._decoder is not None:
                return self._decoder.decode(text)
            return msgspec.json.decode(text)
        except msgspec.MsgspecError as error:
            raise NotReplayable(f"the recorded result does not fit the handler's return annotation: {error}") from error


class LateCodec(Codec):
    """The codec of a handler whose annotations name what is defined only later; made at the first use.

    Args:
        function: the handler.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self._function: Callable[..., object] | None = function

    def resolve(self) -> None:
        """Read the annotations now; called before the handler runs.

        Raises:
            TypeError: they still name what is not defined, or a type that cannot be stored.
        """
        if self._function is None:
            return
        from typing import get_type_hints  # noqa: PLC0415 - loaded by whoever made this

        try:
            annotation = get_type_hints(self._function, include_extras=True).get("return", object)
        except NameError as error:
            raise TypeError(
                f"{self._function.__qualname__}: its annotations name {error.name!r}, which is not defined when it is called; "
                "import it at run time, or leave the return annotation out"
            ) from error
        Codec.__init__(self, annotation)
        self._function = None


def encode_exception(error: Exception) -> str:
    """Return the text to store for an exception that is a handler's outcome.

    Raises:
        NotReplayable: its arguments or attributes cannot be stored.
    """
    raised = {"type": _type_name(type(error)), "args": _tagged(error.args), "state": _tagged(dict(error.__dict__))}
    return _dumped({"$onceward": 1, "raised": raised})


def is_exception(text: str) -> bool:
    """Tell whether a stored text is an exception's."""
    return text.startswith(ENVELOPE + '"raised"')


def decode_exception(text: str, kinds: Sequence[type[Exception]]) -> Exception:
    """Return the exception stored as ``text``, which must be one of ``kinds`` or of their loaded subclasses.

    Raises:
        NotReplayable: it is none of them.
    """
    raised = msgspec.json.decode(text)["raised"]
    pending = list(kinds)
    while pending:
        kind = pending.pop()
        if _type_name(kind) == raised["type"]:
            error = kind.__new__(kind)
            error.args = cast("tuple[object, ...]", _untagged(raised["args"]))
            error.__dict__.update(cast("dict[str, object]", _untagged(raised["state"])))
            return error
        pending.extend(kind.__subclasses__())
    raise NotReplayable(f"the outcome was the exception {raised['type']}, which is not among the loaded final= ones")


def canonical(value: object) -> bytes:
    """Return bytes that are equal for equal values of equal types, whatever the order of their dicts and sets.

    Raises:
        TypeError: the value is of a type that cannot be told apart.
    """
    try:
        return msgspec.json.encode(_tagged(value), order="deterministic")
    except NotReplayable as error:
        raise TypeError(f"no fingerprint can be taken: {error}") from error


# --- values by their own type -------------------------------------------------------------------------------------


def _encode_open(value: object, *, enveloped: bool) -> str:
    try:
        tagged = _tagged(value)
        plain = _dumped(tagged)
    except RecursionError:
        raise NotReplayable("it is nested too deeply, or contains itself") from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise NotReplayable(str(error)) from error
    if not enveloped and (tagged is value or plain == _dumped_as_is(value)):
        return plain
    text = f'{ENVELOPE}"value":{plain}}}'
    if not _same(_decode_open(text), value):
        raise NotReplayable(f"a {type(value).__name__} does not come back equal from what can be stored of it")
    return text


def _decode_open(text: str) -> object:
    return _untagged(msgspec.json.decode(text)["value"])


def _dumped(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _dumped_as_is(value: object) -> str | None:
    try:
        return _dumped(value)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return None


def _same(one: object, other: object) -> bool:
    """Compare a value that was read back with the original; a NaN counts as itself."""
    if type(one) is not type(other):
        return False
    try:
        return bool(one == other) or _tagged(one) == _tagged(other)
    except Exception:  # noqa: BLE001 - a user's __eq__ may do anything; then it cannot be vouched for
        return False


def _tagged(value: object) -> object:  # noqa: PLR0911 - one line per type
    """Return ``value`` in JSON's own types, with a tag around all that JSON would change."""
    kind = type(value)
    if kind in {str, bool, type(None)}:
        return value
    if kind is int:
        return value if -_INT64 <= cast("int", value) < _INT64 else {"$int": str(value)}
    if kind is float:
        return value if math.isfinite(cast("float", value)) else {"$float": repr(value)}
    if kind is list:
        return [_tagged(item) for item in cast("list[object]", value)]
    if kind is dict:
        items = cast("dict[object, object]", value)
        if all(type(key) is str and not key.startswith("$") for key in items):
            return {key: _tagged(item) for key, item in items.items()}
        return {"$dict": [[_tagged(key), _tagged(item)] for key, item in items.items()]}
    writer = _WRITERS.get(kind)
    if writer is not None:
        return {writer[0]: writer[1](value)}
    return _tagged_object(value)


def _tagged_object(value: object) -> object:
    kind = type(value)
    if isinstance(value, Enum):
        return {"$enum": _type_name(kind), "name": value.name}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {"$namedtuple": _type_name(kind), "items": [_tagged(item) for item in value]}
    if _is_model(kind):
        return {"$pydantic": _type_name(kind), "value": _tagged(dict(value.__dict__))}
    names = _field_names(kind)
    if names is None:
        raise NotReplayable(f"{kind.__module__}.{kind.__qualname__} is not a type that can be stored")
    return {"$object": _type_name(kind), "fields": {name: _tagged(getattr(value, name)) for name in names}}


def _untagged(value: object) -> object:
    if type(value) is list:
        return [_untagged(item) for item in value]
    if type(value) is not dict:
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: _untagged(item) for key, item in value.items()}
    reader = _READERS.get(tag)
    if reader is not None:
        return reader(value[tag])
    return _untagged_object(tag, value)


def _untagged_object(tag: str, value: dict[str, object]) -> object:
    kind = _loaded_type(str(value[tag]))
    if tag == "$enum":
        return cast("type[Enum]", kind)[str(value["name"])]
    if tag == "$namedtuple":
        return kind(*cast("list[object]", _untagged(value["items"])))
    if tag == "$pydantic":
        return kind.model_validate(_untagged(value["value"]))  # type: ignore[attr-defined]  # a pydantic model
    fields = cast("dict[str, object]", _untagged(value["fields"]))
    if issubclass(kind, msgspec.Struct):
        return kind(**fields)
    made = kind.__new__(kind)  # without __init__: it may take other arguments, or have effects
    for name, item in fields.items():
        object.__setattr__(made, name, item)
    return made


def _type_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _loaded_type(name: str) -> type:
    """Find a class by name among the modules loaded already: what stands in a ledger never imports anything."""
    module, _, qualified = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise NotReplayable(f"the recorded result is a {name}, which is not loaded here; import its module first")
    if not (issubclass(found, Enum | tuple) or _is_model(found) or _field_names(found) is not None):
        raise NotReplayable(f"the recorded result names {name}, which is no longer a type that is stored")
    return found


def _field_names(kind: type) -> Sequence[str] | None:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    fields = getattr(kind, "__dataclass_fields__", None)
    return None if fields is None else [name for name, field in fields.items() if field._field_type.name == "_FIELD"]  # noqa: SLF001 - what dataclasses.fields() does, without its import


def _is_model(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


_WRITERS: dict[type, tuple[str, Callable[[object], object]]] = {
    tuple: ("$tuple", lambda v: [_tagged(item) for item in cast("tuple[object, ...]", v)]),
    set: ("$set", lambda v: _sorted(cast("set[object]", v))),
    frozenset: ("$frozenset", lambda v: _sorted(cast("frozenset[object]", v))),
    bytes: ("$bytes", lambda v: _bytes_text(cast("bytes", v))),
    bytearray: ("$bytearray", lambda v: _bytes_text(bytes(cast("bytearray", v)))),
    complex: ("$complex", repr),
    uuid.UUID: ("$uuid", str),
    decimal.Decimal: ("$decimal", str),
    dt.datetime: ("$datetime", lambda v: _datetime_text(cast("dt.datetime", v))),
    dt.date: ("$date", lambda v: cast("dt.date", v).isoformat()),
    dt.time: ("$time", lambda v: cast("dt.time", v).isoformat()),
    dt.timedelta: ("$timedelta", lambda v: [(d := cast("dt.timedelta", v)).days, d.seconds, d.microseconds]),
}

_READERS: dict[str, Callable[[object], object]] = {
    "$int": lambda v: int(cast("str", v)),
    "$float": lambda v: float(cast("str", v)),
    "$dict": lambda v: {_untagged(key): _untagged(item) for key, item in cast("list[list[object]]", v)},
    "$tuple": lambda v: tuple(_untagged(item) for item in cast("list[object]", v)),
    "$set": lambda v: {_untagged(item) for item in cast("list[object]", v)},
    "$frozenset": lambda v: frozenset(_untagged(item) for item in cast("list[object]", v)),
    "$bytes": lambda v: _bytes_of(cast("dict[str, str]", v)),
    "$bytearray": lambda v: bytearray(_bytes_of(cast("dict[str, str]", v))),
    "$complex": lambda v: complex(cast("str", v)),
    "$uuid": lambda v: uuid.UUID(cast("str", v)),
    "$decimal": lambda v: decimal.Decimal(cast("str", v)),
    "$datetime": lambda v: _datetime_of(cast("str | list[object]", v)),
    "$date": lambda v: dt.date.fromisoformat(cast("str", v)),
    "$time": lambda v: dt.time.fromisoformat(cast("str", v)),
    "$timedelta": lambda v: dt.timedelta(*cast("list[int]", v)),
}


def _sorted(items: "set[object] | frozenset[object]") -> list[object]:
    return sorted((_tagged(item) for item in items), key=msgspec.json.encode)


def _bytes_text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("ascii")}
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def _bytes_of(stored: dict[str, str]) -> bytes:
    return stored["text"].encode("ascii") if "text" in stored else bytes.fromhex(stored["hex"])


def _datetime_text(moment: dt.datetime) -> object:
    if moment.fold:
        raise NotReplayable("a datetime with fold=1 cannot be stored")
    zone = getattr(moment.tzinfo, "key", None)  # zoneinfo: an offset alone would lose the zone
    return [moment.replace(tzinfo=None).isoformat(), zone] if zone else moment.isoformat()


def _datetime_of(stored: str | list[object]) -> dt.datetime:
    if isinstance(stored, str):
        return dt.datetime.fromisoformat(stored)
    import zoneinfo  # noqa: PLC0415 - rare results only

    return dt.datetime.fromisoformat(str(stored[0])).replace(tzinfo=zoneinfo.ZoneInfo(str(stored[1])))


# --- annotations --------------------------------------------------------------------------------------------------


def _is_precise(info: object, seen: frozenset[int] = frozenset()) -> bool:
    """Tell whether JSON read for this type gives back exactly what was written, with no part left open.

    Raises:
        NotReplayable: the type cannot be encoded at all.
    """
    if isinstance(info, msgspec.inspect.AnyType):
        return False
    if isinstance(info, msgspec.inspect.CustomType):
        if not _is_model(info.cls):
            raise NotReplayable(f"{info.cls.__module__}.{info.cls.__qualname__} is not a type that can be encoded")
        return True
    if isinstance(info, msgspec.inspect.Metadata):
        return _is_precise(info.type, seen)
    if id(info) in seen or not isinstance(info, msgspec.inspect.Type):
        return True
    seen |= {id(info)}
    # Every part is looked at, also after a loose one: one that cannot be encoded is to be found now.
    precise = [_is_precise(part, seen) for part in _parts(info)]
    return all(precise)


def _parts(info: msgspec.inspect.Type) -> list[object]:
    parts: list[object] = []
    for name in info.__struct_fields__:
        value = getattr(info, name)
        if isinstance(value, msgspec.inspect.Type):
            parts.append(value)
        elif isinstance(value, tuple):
            parts += [getattr(part, "type", part) for part in value]
    return parts


def _to_builtin(value: object) -> object:
    if _is_model(type(value)):
        return value.model_dump(mode="json")  # type: ignore[attr-defined]  # a pydantic model
    raise NotImplementedError(f"{type(value).__qualname__} cannot be encoded")


def _from_builtin(kind: type, value: object) -> object:
    return kind.model_validate(value)  # type: ignore[attr-defined]  # _is_precise lets through pydantic models only

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
from typing import Never, NoReturn, Self, cast

import msgspec

ENVELOPE = '{"$onceward":1,'
_INT64 = 1 << 63
_MOST_BITS = 10_000  # Python writes no longer int in decimal than 4300 digits (sys.set_int_max_str_digits)
_OPEN = (object, None, type(None), NoReturn, Never, Self)  # annotations that say nothing about how to store a result


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
        if any(annotation is nothing for nothing in _OPEN):
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
            except Exception:  # noqa: BLE001, S110 - not of its annotated type; stored by its own type instead
                pass
            return _encode_open(value, enveloped=True)
        return _encode_open(value, enveloped=False)

    def decode(self, text: str) -> object:
        """Return the value stored as ``text``.

        Raises:
            NotReplayable: the text does not fit the annotation, or names a type that is not loaded.
        """
        try:
            if text.startswith(ENVELOPE):
                return _decode_open(text)
            if self._decoder is not None:
                return self._decoder.decode(text)
            return msgspec.json.decode(text)
        except NotReplayable:
            raise
        except Exception as error:
            # Classes change from one release to the next, and what they do when they are made is the user's own.
            raise NotReplayable(
                f"the recorded result does not fit what the handler returns today: {error!r}"
            ) from error


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
        from onceward.inputs import hint  # noqa: PLC0415 - loaded by whoever made this

        try:
            annotation = hint(self._function, "return")
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
        NotReplayable: its arguments or attributes cannot be stored, or it does not come back the same.
    """
    try:
        how = error.__reduce__()
        args = (
            how[1] if isinstance(how, tuple) and how[0] is type(error) else error.args
        )  # OSError keeps some elsewhere
        raised = {"type": _type_name(type(error)), "args": _tagged(args), "state": _tagged(dict(error.__dict__))}
        text = _dumped({"$onceward": 1, "raised": raised})
        back = decode_exception(text, [type(error)])
        same = _same(back.args, error.args) and str(back) == str(error)
    except NotReplayable:
        raise
    except Exception as trouble:
        raise NotReplayable(repr(trouble)) from trouble
    if not same:
        raise NotReplayable(f"{type(error).__qualname__} does not come back equal from its arguments and attributes")
    return text


def is_exception(text: str) -> bool:
    """Tell whether a stored text is an exception's."""
    return text.startswith(ENVELOPE + '"raised"')


def decode_exception(text: str, kinds: Sequence[type[Exception]]) -> Exception:
    """Return the exception stored as ``text``, which must be one of ``kinds`` or of their loaded subclasses.

    Raises:
        NotReplayable: it is none of them, or can no longer be made of what was stored.
    """
    raised = msgspec.json.decode(text)["raised"]
    pending = list(kinds)
    while pending:
        kind = pending.pop()
        if _type_name(kind) == raised["type"]:
            try:
                # Without __init__: it may take other arguments, or have effects.
                error = kind.__new__(kind, *cast("tuple[object, ...]", _untagged(raised["args"])))
                error.__dict__.update(cast("dict[str, object]", _untagged(raised["state"])))
            except Exception as trouble:
                raise NotReplayable(f"the recorded {raised['type']} cannot be made again: {trouble!r}") from trouble
            return error
        pending.extend(kind.__subclasses__())
    raise NotReplayable(f"the outcome was the exception {raised['type']}, which is not among the loaded final= ones")


def canonical(value: object) -> bytes:
    """Return bytes that are equal for equal values of equal types, whatever the order of their dicts and sets.

    Raises:
        TypeError: the value is of a type that cannot be told apart, or contains itself.
    """
    try:
        tagged = _tagged(value)
        data = msgspec.json.encode(tagged, order="deterministic")
        return msgspec.json.encode(_ordered(tagged), order="deterministic") if b'"$dict"' in data else data
    except NotReplayable as error:
        raise TypeError(f"no fingerprint can be taken: {error}") from error
    except RecursionError:
        raise TypeError("no fingerprint can be taken: the input is nested too deeply, or contains itself") from None


def _ordered(tagged: object) -> object:
    """Sort the pairs of dicts whose keys are not all str; the others are ordered by the encoder."""
    if type(tagged) is list:
        return [_ordered(item) for item in tagged]
    if type(tagged) is not dict:
        return tagged
    if "$dict" in tagged:
        return {"$dict": sorted((_ordered(pair) for pair in tagged["$dict"]), key=_sorting)}
    return {key: _ordered(item) for key, item in tagged.items()}


def _sorting(tagged: object) -> bytes:
    return msgspec.json.encode(tagged, order="deterministic")


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
    try:
        same = _same(_decode_open(text), value)
    except NotReplayable:
        raise
    except Exception as error:
        raise NotReplayable(f"a {type(value).__name__} cannot be read back: {error!r}") from error
    if not same:
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
    """Compare a value that was read back with the original, part by part: 1, 1.0 and True are not the same."""
    try:
        return _alike(one, other)
    except Exception:  # noqa: BLE001 - a user's __eq__ may do anything; then it cannot be vouched for
        return False


def _alike(one: object, other: object) -> bool:  # noqa: PLR0911 - one line per type
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in {str, int, bool, type(None), bytes}:
        return one == other
    if kind in {float, complex, decimal.Decimal}:
        return repr(one) == repr(other)  # a NaN counts as itself, and -0.0 is not 0.0
    if kind in {list, tuple}:
        ones, others = cast("list[object]", one), cast("list[object]", other)
        return len(ones) == len(others) and all(map(_alike, ones, others))
    if kind is dict:
        pairs, other_pairs = cast("dict[object, object]", one), cast("dict[object, object]", other)
        return len(pairs) == len(other_pairs) and all(map(_alike, pairs.items(), other_pairs.items()))
    if kind in {set, frozenset}:
        return one == other and canonical(one) == canonical(other)
    if kind in {dt.datetime, dt.time}:
        return _alike_time(cast("dt.time", one), cast("dt.time", other))
    return _alike_object(one, other)


def _alike_time(one: "dt.datetime | dt.time", other: "dt.datetime | dt.time") -> bool:
    return (
        one.isoformat() == other.isoformat()
        and one.fold == other.fold
        and _zone(one) == _zone(other)
        and (one.tzinfo is None) == (other.tzinfo is None)
    )


def _alike_object(one: object, other: object) -> bool:
    kind = type(one)
    if isinstance(one, tuple):
        return _alike(tuple(one), tuple(cast("tuple[object, ...]", other)))
    if _is_model(kind):
        parts = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
        return all(_alike_state(getattr(one, name), getattr(other, name), kind) for name in parts)
    names = _field_names(kind)
    if names is None:
        return bool(one == other)
    if not all(_alike(getattr(one, name), getattr(other, name)) for name in names):
        return False
    return _alike_state(getattr(one, "__dict__", None), getattr(other, "__dict__", None), kind)


def _alike_state(one: dict[str, object] | None, other: dict[str, object] | None, kind: type) -> bool:
    """Compare attributes; what the class itself can make again (a cached_property) need not be there."""
    one, other = one or {}, other or {}
    differing = {name for name in one.keys() ^ other.keys() if not hasattr(getattr(kind, name, None), "__get__")}
    return not differing and all(_alike(one[name], other[name]) for name in one.keys() & other.keys())


def _tagged(value: object) -> object:  # noqa: PLR0911 - one line per type
    """Return ``value`` in JSON's own types, with a tag around all that JSON would change."""
    kind = type(value)
    if kind is str:
        return value if _is_text(cast("str", value)) else {"$str": _escapes(cast("str", value))}
    if kind is bool or value is None:
        return value
    if kind is int:
        return value if -_INT64 <= cast("int", value) < _INT64 else {"$int": _int_text(cast("int", value))}
    if kind is float:
        return value if math.isfinite(cast("float", value)) else {"$float": repr(value)}
    if kind is list:
        return [_tagged(item) for item in cast("list[object]", value)]
    if kind is dict:
        items = cast("dict[object, object]", value)
        if all(type(key) is str and not key.startswith("$") and _is_text(key) for key in items):
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
        fields = {name: item for name, item in value.__dict__.items() if name in kind.model_fields}  # type: ignore[attr-defined]  # a pydantic model
        extra: dict[str, object] = getattr(value, "__pydantic_extra__", None) or {}
        return {"$pydantic": _type_name(kind), "value": _tagged({**fields, **extra})}
    names = _field_names(kind)
    if names is None:
        raise NotReplayable(f"{kind.__module__}.{kind.__qualname__} is not a type that can be stored")
    parts = {name: getattr(value, name) for name in names}
    return {
        "$object": _type_name(kind),
        "fields": {name: _tagged(item) for name, item in parts.items() if item is not msgspec.UNSET},
    }


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
        # Without validation: it was valid when it was made, and validators may have effects, or want aliases.
        return kind.model_construct(**cast("dict[str, object]", _untagged(value["value"])))  # type: ignore[attr-defined]  # a pydantic model
    fields = cast("dict[str, object]", _untagged(value["fields"]))
    if issubclass(kind, msgspec.Struct):
        return kind(**fields)
    made = kind.__new__(kind)  # without __init__: it may take other arguments, or have effects
    for name in _field_names(kind) or ():
        if name not in fields:
            fields[name] = _default(kind, name)
    for name, item in fields.items():
        object.__setattr__(made, name, item)
    return made


def _default(kind: type, name: str) -> object:
    """Return the default of a field that a dataclass has got since an object was stored."""
    from dataclasses import MISSING, fields  # noqa: PLC0415 - loaded by whoever made the class

    field = next(field for field in fields(kind) if field.name == name)
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    raise NotReplayable(f"{kind.__qualname__} has had a field {name!r} since, which the recorded result lacks")


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
    dt.datetime: ("$datetime", lambda v: _time_text(cast("dt.datetime", v))),
    dt.date: ("$date", lambda v: cast("dt.date", v).isoformat()),
    dt.time: ("$time", lambda v: _time_text(cast("dt.time", v))),
    dt.timedelta: ("$timedelta", lambda v: [(d := cast("dt.timedelta", v)).days, d.seconds, d.microseconds]),
}

_READERS: dict[str, Callable[[object], object]] = {
    "$str": lambda v: _unescaped(cast("str", v)),
    "$int": lambda v: int(cast("str", v), 0),
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
    "$datetime": lambda v: _time_of(dt.datetime, v),
    "$date": lambda v: dt.date.fromisoformat(cast("str", v)),
    "$time": lambda v: _time_of(dt.time, v),
    "$timedelta": lambda v: dt.timedelta(*cast("list[int]", v)),
}


def _sorted(items: "set[object] | frozenset[object]") -> list[object]:
    return sorted((_tagged(item) for item in items), key=_sorting)


def _is_text(text: str) -> bool:
    """Tell whether a str can be written as UTF-8, which has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escapes(text: str) -> str:
    import json  # noqa: PLC0415 - rare results only; msgspec writes no lone surrogates

    return json.dumps(text)


def _unescaped(stored: str) -> str:
    import json  # noqa: PLC0415 - as above

    return str(json.loads(stored))


def _int_text(number: int) -> str:
    return str(number) if number.bit_length() < _MOST_BITS else hex(number)


def _bytes_text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("ascii")}
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def _bytes_of(stored: dict[str, str]) -> bytes:
    return stored["text"].encode("ascii") if "text" in stored else bytes.fromhex(stored["hex"])


def _zone(moment: dt.datetime | dt.time) -> str | None:
    return getattr(moment.tzinfo, "key", None)  # zoneinfo: an offset alone would lose the zone


def _time_text(moment: dt.datetime | dt.time) -> object:
    zone = _zone(moment)
    if zone is None and not moment.fold:
        return moment.isoformat()
    plain = moment.replace(tzinfo=None) if zone else moment
    return [plain.isoformat(), zone, moment.fold]


def _time_of(kind: type[dt.datetime] | type[dt.time], stored: object) -> dt.datetime | dt.time:
    if isinstance(stored, str):
        return kind.fromisoformat(stored)
    text, zone, fold = cast("tuple[str, str | None, int]", stored)
    moment = kind.fromisoformat(text).replace(fold=fold)
    if zone is None:
        return moment
    import zoneinfo  # noqa: PLC0415 - rare results only

    return moment.replace(tzinfo=zoneinfo.ZoneInfo(zone))


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
        return value.model_dump(mode="json", by_alias=True)  # type: ignore[attr-defined]  # a pydantic model
    raise NotImplementedError(f"{type(value).__qualname__} cannot be encoded")


def _from_builtin(kind: type, value: object) -> object:
    return kind.model_validate(value)  # type: ignore[attr-defined]  # _is_precise lets through pydantic models only

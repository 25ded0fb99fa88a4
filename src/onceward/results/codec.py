"""Results to text and back: a replay equals the first answer and has the same type.

With a precise return annotation, msgspec writes and reads plain JSON for that type. Otherwise, values that JSON has are
stored as plain JSON, and all others in an envelope that names their types::

    {"$onceward": 1, "value": {"$tuple": [1, {"$datetime": "2026-11-21T08:00:00+00:00"}]}}

Each value is read back and compared before it is stored. One that cannot be stored raises :class:`NotReplayable`.
"""

import datetime as dt
import decimal
from collections.abc import Sequence
from types import MemberDescriptorType
from typing import Any, Never, NoReturn, Self, cast

import msgspec

from onceward.results.classes import NotReplayable as NotReplayable  # noqa: PLC0414 - Replays has all of the codec from here
from onceward.results.classes import field_names, has_name, is_model, type_name
from onceward.results.values import canonical, findable, is_plain, model_data, tagged, time_text, untagged

ENVELOPE = '{"$onceward":1,'
_ENVELOPE = ENVELOPE.encode()
RAISED = ENVELOPE + '"raised"'  # how an exception begins
_OPEN = (object, None, type(None), NoReturn, Never, Self)  # annotations that do not say how to store a result


class Codec:
    """How the results of one handler are stored.

    Args:
        annotation: the handler's return type, or ``object`` when it has none.

    Raises:
        TypeError: no value of that type can be stored.
    """

    def __init__(self, annotation: object = object) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=model_data)
        self._decoder = decoder_of(annotation)

    def encode(self, value: object) -> str:
        """Return the text to store.

        Raises:
            NotReplayable: the value would not come back equal and of the same type.
        """
        try:
            if self._decoder is None:
                if is_plain(value):
                    return msgspec.json.encode(value).decode()
            else:
                data = self._encoder.encode(value)
                if not data.startswith(_ENVELOPE) and same(self._decoder.decode(data), value):
                    return data.decode()
        except Exception:  # it may run a user's code; the envelope says why
            pass
        return _encode_open(value)

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
            # Classes change between releases, and their constructors are the user's code.
            raise NotReplayable(
                f"the recorded result does not fit what the handler returns today: {error!r}"
            ) from error


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
        parts = findable({"args": tagged(args), "state": tagged(dict(error.__dict__))})
        raised = {"type": type_name(type(error)), **cast("dict[str, object]", parts)}
        text = _dumped({"$onceward": 1, "raised": raised})
        back = decode_exception(text, [type(error)])
        unchanged = same(back.args, error.args) and str(back) == str(error)
    except NotReplayable:
        raise
    except Exception as trouble:
        raise NotReplayable(repr(trouble)) from trouble
    if not unchanged:
        raise NotReplayable(f"{type(error).__qualname__} does not come back equal from its arguments and attributes")
    return text


def decode_exception(text: str, kinds: Sequence[type[Exception]]) -> Exception:
    """Return the exception stored as ``text``. It must be one of ``kinds`` or of their loaded subclasses.

    Raises:
        NotReplayable: it is none of them, or can no longer be made from the stored text.
    """
    try:
        raised = msgspec.json.decode(text)["raised"]
        name, args, state = str(raised["type"]), raised["args"], raised["state"]
    except Exception as trouble:
        raise NotReplayable(f"the recorded exception cannot be read: {trouble!r}") from trouble
    pending = list(kinds)
    while pending:
        kind = pending.pop()
        if has_name(kind, name):
            try:
                # Without __init__, which may take other arguments or have effects.
                error = kind.__new__(kind, *cast("tuple[object, ...]", untagged(args)))
                error.__dict__.update(cast("dict[str, object]", untagged(state)))
            except Exception as trouble:
                raise NotReplayable(f"the recorded {name} cannot be made again: {trouble!r}") from trouble
            return error
        pending.extend(kind.__subclasses__())
    raise NotReplayable(f"the outcome was the exception {name}, which is not among the loaded final= ones")


def _encode_open(value: object) -> str:
    try:
        marked = tagged(value)
        plain = _dumped(marked)
        if "__main__:" in plain:
            plain = _dumped(findable(marked))
    except RecursionError:
        raise NotReplayable("it is nested too deeply, or contains itself") from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise NotReplayable(str(error)) from error
    text = f'{ENVELOPE}"value":{plain}}}'
    try:
        unchanged = same(_decode_open(text), value)
    except NotReplayable:
        raise
    except Exception as error:
        raise NotReplayable(f"a {type(value).__name__} cannot be read back: {error!r}") from error
    if not unchanged:
        raise NotReplayable(f"a {type(value).__name__} does not come back equal from what can be stored of it")
    return text


def _decode_open(text: str) -> object:
    return untagged(msgspec.json.decode(text)["value"])


def _dumped(value: object) -> str:
    return msgspec.json.encode(value).decode()


def decoder_of(annotation: object) -> "msgspec.json.Decoder[object] | None":
    """Return what reads results of a return type; None if the text of each says its type. Raises TypeError: see :class:`Codec`."""
    if any(annotation is nothing for nothing in _OPEN):
        return None
    try:
        if _is_precise(msgspec.inspect.type_info(annotation)):
            return msgspec.json.Decoder(cast("type[object]", annotation), dec_hook=_from_builtin)
    except (TypeError, NotReplayable, AttributeError) as error:
        raise TypeError(
            f"results of type {annotation!r} cannot be recorded: {error}. Return a type that msgspec or pydantic "
            "encodes (dataclass, Struct, TypedDict, the standard types), or leave the annotation out"
        ) from error
    return None


def _is_precise(info: object, seen: frozenset[int] = frozenset()) -> bool:
    """Return whether JSON reads back exactly, with no part of the type left open; raises NotReplayable if it cannot be encoded."""
    if isinstance(info, msgspec.inspect.AnyType):
        return False
    if isinstance(info, msgspec.inspect.CustomType):
        if info.cls is object:
            return False
        if not is_model(info.cls):
            raise NotReplayable(f"{info.cls.__module__}.{info.cls.__qualname__} is not a type that can be encoded")
        return True
    if isinstance(info, msgspec.inspect.Metadata):
        return _is_precise(info.type, seen)
    if id(info) in seen or not isinstance(info, msgspec.inspect.Type):
        return True
    seen |= {id(info)}
    # No short cut after an open part: a later part that cannot be encoded must raise now.
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


def _from_builtin(kind: Any, value: object) -> object:
    model: object = kind.model_validate(value)  # _is_precise lets through pydantic models only
    return model


_PLAIN = frozenset({str, int, bool, type(None), bytes})


def same(one: Any, other: Any) -> bool:
    """Compare two values part by part: 1, 1.0 and True are not the same. Raises what a user's ``__eq__`` raises."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in _PLAIN:
        return bool(one == other)
    if kind in {float, complex, decimal.Decimal}:
        return repr(one) == repr(other)  # NaN equals itself, and -0.0 is not 0.0
    if kind in {list, tuple}:
        return len(one) == len(other) and all(map(same, one, other))
    if kind is dict:
        return len(one) == len(other) and all(map(same, one.items(), other.items()))
    if kind in {set, frozenset}:
        return len(one) == len(other) and all(map(same, sorted(one, key=canonical), sorted(other, key=canonical)))
    if kind in {dt.datetime, dt.time}:
        return time_text(one) == time_text(other) and (one.tzinfo is None) is (other.tzinfo is None)
    return _alike_object(one, other)


def _alike_object(one: Any, other: Any) -> bool:
    kind = type(one)
    if isinstance(one, tuple):
        return same(tuple(one), tuple(other)) and _alike_attributes(one, other)
    if is_model(kind):
        if one.__pydantic_fields_set__ != other.__pydantic_fields_set__:
            return False
        parts = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
        return all(_alike_state(getattr(one, name), getattr(other, name), kind) for name in parts)
    names = field_names(kind)
    if names is None:
        return bool(one == other)
    if not all(same(getattr(one, name), getattr(other, name)) for name in names):
        return False
    return _alike_attributes(one, other)


def _alike_attributes(one: object, other: object) -> bool:
    """Compare the attributes of two objects besides their fields."""
    for base in type(one).__mro__:
        if "__slots__" in base.__dict__:
            slots = [name for name, slot in base.__dict__.items() if type(slot) is MemberDescriptorType]
            if not all(same(getattr(one, name, None), getattr(other, name, None)) for name in slots):
                return False
    return _alike_state(getattr(one, "__dict__", None), getattr(other, "__dict__", None), type(one))


def _alike_state(one: dict[str, object] | None, other: dict[str, object] | None, kind: type) -> bool:
    """Compare attributes. One that the class can make again, such as a cached_property, may be missing."""
    one, other = one or {}, other or {}
    differing = {name for name in one.keys() ^ other.keys() if not hasattr(getattr(kind, name, None), "__get__")}
    return not differing and all(same(one[name], other[name]) for name in one.keys() & other.keys())

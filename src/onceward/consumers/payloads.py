"""Converts a delivery's payload to the annotation of the parameter that takes it."""

import inspect
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from onceward.claim.handler import hint
from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.keys.json_reading import without_mark
from onceward.keys.roots import called
from onceward.results.classes import is_model
from onceward.results.codec import Codec

Payload = Callable[[Delivery], object]
_LATE: Final = object()  # an annotation with a name that is not defined yet
_AS_IT_IS: Final = (object, Any)


def annotation_of(function: Callable[..., object], name: str) -> object:
    """Return the annotation of a parameter; ``object`` if it has none, and LATE if it names what is not defined yet."""
    try:
        return hint(function, name)
    except (KeyError, AttributeError, TypeError):  # it has none, or cannot have one
        return object
    except NameError:
        written = inspect.signature(function).parameters[name].annotation
        return Delivery if written in {"Delivery", "aws.Delivery", "onceward.aws.Delivery"} else _LATE


def payload_of(function: Callable[..., object], name: str, annotation: object) -> Payload:
    """Return what makes the value of a parameter from a delivery; it raises MalformedRecord if the payload does not fit."""
    if annotation is not _LATE:
        return _converter(function, annotation)
    ready: list[Payload] = []

    def late(delivery: Delivery) -> object:
        if not ready:
            try:
                ready.append(_converter(function, hint(function, name)))
            except NameError as error:
                raise TypeError(
                    f"{called(function)}: its annotations name {error.name!r}, which is not defined at the call; import it at run "
                    "time, or leave the annotation out"
                ) from error
        return ready[0](delivery)

    return late


def _converter(function: Callable[..., object], annotation: object) -> Payload:
    if any(annotation is kind for kind in _AS_IT_IS):
        return lambda delivery: delivery.data
    convert = _conversion(function, annotation)

    def checked(delivery: Delivery) -> object:
        try:
            return convert(delivery)
        except MalformedRecord:
            raise
        except Exception as error:
            raise MalformedRecord(
                f"the payload does not fit {called(function)}, which takes {annotation!r} and did not run: "
                f"{delivery.not_json or _said(error)}"
            ) from (delivery.not_json or error)

    return checked


def _conversion(function: Callable[..., object], annotation: object) -> Payload:
    if annotation is str:
        return _as_text
    if annotation is bytes:
        return _as_bytes
    if isinstance(annotation, type) and is_model(annotation):
        return lambda delivery: _as_model(annotation, delivery)
    try:
        Codec(annotation)
        decoder = msgspec.json.Decoder(cast("type[object]", annotation), dec_hook=_from_builtin)
    except TypeError as error:
        raise TypeError(
            f"{called(function)}: a payload cannot be converted to {annotation!r}: {error.__cause__ or error}. Annotate the parameter "
            "with a type that msgspec or pydantic decodes (dict, dataclass, Struct, TypedDict, a model), or Delivery, or not "
            "at all"
        ) from error

    def convert(delivery: Delivery) -> object:
        data = delivery.read()  # what is almost JSON is refused first
        if delivery.body is not None and delivery.not_json is None:
            return decoder.decode(without_mark(delivery.body))
        return msgspec.convert(data, cast("type[object]", annotation), dec_hook=_from_builtin)

    return convert


def _as_text(delivery: Delivery) -> str:
    body = delivery.data if delivery.body is None else delivery.body
    if isinstance(body, bytes):
        body = body.decode()
    return msgspec.convert(body, str)


def _as_bytes(delivery: Delivery) -> bytes:
    body = delivery.data if delivery.body is None else delivery.body
    return body.encode() if isinstance(body, str) else msgspec.convert(body, bytes)


def _as_model(model: Any, delivery: Delivery) -> object:
    """Let pydantic read the JSON itself: its strict types accept more from JSON than from Python's values."""
    data = delivery.read()  # as above
    if delivery.body is not None and delivery.not_json is None:
        return cast("object", model.model_validate_json(without_mark(delivery.body)))
    return cast("object", model.model_validate(data))


def _said(error: Exception) -> str:
    """Return what an error says, without the values that pydantic quotes: they may be secret."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors())


def _from_builtin(kind: Any, value: object) -> object:
    if kind is object:
        return value
    found: object = kind.model_validate(value)  # Codec accepts no other kinds but pydantic models
    return found

"""Reads a function's arguments, key and fingerprint from each delivery."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, cast, get_args

import msgspec

from onceward.batch.outcomes import Reading
from onceward.claim.handler import handler_of, hint
from onceward.consumers.delivery import Delivery, MalformedRecord, fields_of
from onceward.core.origin import provenance_in
from onceward.errors import KeyMissing
from onceward.keys.json_reading import without_mark
from onceward.keys.paths import Roots, name_of
from onceward.keys.reading import KeyReader, KeySource
from onceward.keys.signatures import roots_of
from onceward.results.classes import is_model
from onceward.results.codec import Codec

Payload = Callable[[Delivery], object]
_AS_IT_IS: Final = (object, Any)


def annotation_of(function: Callable[..., object], name: str) -> object:
    """Return the annotation of a parameter; ``object`` if it has none.

    Raises:
        TypeError: it names what is not defined.
    """
    try:
        return hint(function, name)
    except (KeyError, AttributeError, TypeError):  # it has none, or cannot have one
        return object
    except NameError as error:
        raise TypeError(
            f"{name_of(function)}: its annotations name {error.name!r}, which is not defined: define or import it before the handler, "
            "or leave the annotation out"
        ) from error


def payload_of(function: Callable[..., object], annotation: object) -> Payload:
    """Return what makes an argument from a delivery; it raises MalformedRecord if the payload does not fit."""
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
                f"the payload does not fit {name_of(function)}, which takes {annotation!r} and did not run: "
                f"{delivery.not_json or _plain(error)}"
            ) from (delivery.not_json or error)

    return checked


def _conversion(function: Callable[..., object], annotation: object) -> Payload:
    if annotation is str or annotation is bytes:
        return lambda delivery: _as_it_came(delivery, annotation)
    read: Callable[[str | bytes], object]
    take: Callable[[object], object]
    if isinstance(annotation, type) and is_model(annotation):
        # pydantic reads the JSON itself: its strict types accept more from JSON than from Python's values.
        read, take = cast("Any", annotation).model_validate_json, cast("Any", annotation).model_validate
    else:
        kind = cast("type[object]", annotation)
        try:
            Codec(annotation)
            read = msgspec.json.Decoder(kind, dec_hook=_from_builtin).decode
        except TypeError as error:
            raise TypeError(
                f"{name_of(function)}: a payload cannot be converted to {annotation!r}: {error.__cause__ or error}. Annotate the parameter "
                "with a type that msgspec or pydantic decodes (dict, dataclass, Struct, TypedDict, a model), or Delivery, or not "
                "at all"
            ) from error
        take = partial(msgspec.convert, type=kind, dec_hook=_from_builtin)

    def convert(delivery: Delivery) -> object:
        data = delivery.read()  # what is almost JSON is refused first
        if delivery.body is not None and delivery.not_json is None:
            return read(without_mark(delivery.body))
        return take(data)

    return convert


def _as_it_came(delivery: Delivery, kind: object) -> object:
    body = delivery.data if delivery.body is None else delivery.body
    if kind is str:
        return msgspec.convert(body.decode() if isinstance(body, bytes) else body, str)
    return msgspec.convert(body.encode() if isinstance(body, str) else body, bytes)


def _plain(error: Exception) -> str:
    """Return what an error says, without the values that pydantic quotes: they may be secret."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors())


def _from_builtin(kind: Any, value: object) -> object:
    if kind is object:
        return value
    model: object = kind.model_validate(value)  # Codec accepts no other kinds but pydantic models
    return model


_BY_PLACE: Final = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
DELIVERY_NAME: Final = "_delivery"  # our own callables name this parameter to get the delivery


class DeliveryReader:
    """Reads deliveries for one function.

    A path begins with a parameter's name. It sees the decoded payload before its conversion to the annotation, so a new
    annotation does not change keys. It sees a ``Delivery`` as its fields.

    The function's first parameter gets the payload, converted to the annotation. A parameter annotated ``Delivery`` gets the
    delivery, one annotated ``Claim`` the claim (which is not filled in here). For the rest see :class:`DeliveryOptions`.

    Raises:
        TypeError, ValueError: nothing supplies one of the function's parameters, or an option does not fit.
    """

    def __init__(
        self, function: Callable[..., object], key: KeySource | None, fingerprint: KeySource | bool | None
    ) -> None:
        claim = handler_of(function).claim
        self._arguments = _arguments(function, claim)
        if fingerprint is True:
            fingerprint = _data_of
        self._keys = KeyReader(
            default_key if key is None else _source(key),
            _source(fingerprint) if fingerprint else None,
            _roots(function, self._arguments, claim),
            more=(DELIVERY_NAME,),
            handler=name_of(function),
        )

    def read(self, delivery: Delivery) -> Reading:
        """Return a delivery's arguments, key and fingerprint.

        Raises:
            MalformedRecord: it cannot be read, or its payload does not fit the function.
            KeyMissing: it has no key.
        """
        if delivery.fault is not None:
            raise delivery.fault
        args = []
        for_paths: dict[str, object] = {}
        for_calls: dict[str, object] = {DELIVERY_NAME: delivery}
        for name, make, several, is_delivery in self._arguments:
            value = make(delivery)
            args.append(value)
            for_calls[name] = [value] if several else value
            if self._keys.by_path:  # otherwise a converted payload is not decoded twice
                seen = fields_of(delivery) if is_delivery else delivery.data
                for_paths[name] = [seen] if several else seen
        try:
            key, mark = self._keys.key(for_paths, for_calls), self._keys.fingerprint(for_paths, for_calls)
        except KeyMissing as error:
            if delivery.not_json is None:
                raise
            raise MalformedRecord(
                f"the payload is {delivery.not_json}, and so has no key: {error}"
            ) from delivery.not_json
        return Reading(tuple(args), key, mark, delivery.comes, provenance_in(delivery.header))


def default_key(_delivery: Delivery) -> object:
    """Return the default key of a delivery; raises KeyMissing if it has none."""
    if _delivery.key is None:
        raise KeyMissing(
            f"this record of {_delivery.source} lacks a part of its default key: give key=. "
            "The documentation's page on Lambda lists the default keys"
        )
    return _delivery.key


class _Argument(NamedTuple):
    """A parameter to fill in: its name, how to make its value, and whether it is ``*args`` or the delivery."""

    name: str
    make: Payload
    several: bool
    delivery: bool


def _arguments(function: Callable[..., object], claim: str | None) -> list[_Argument]:
    """Return the parameters to fill in, in the function's order."""
    arguments: list[_Argument] = []
    has_payload = done = False
    for name, parameter in inspect.signature(function).parameters.items():
        if name == claim or parameter.kind is parameter.VAR_KEYWORD:
            continue
        annotation = annotation_of(function, name)
        wants_delivery = annotation is Delivery or Delivery in get_args(annotation)
        several = parameter.kind is parameter.VAR_POSITIONAL
        if several or (parameter.kind in _BY_PLACE and not done):
            if wants_delivery:
                arguments.append(_Argument(name, lambda delivery: delivery, several, delivery=True))
                continue
            if not has_payload:
                arguments.append(_Argument(name, payload_of(function, annotation), several, delivery=False))
                has_payload = True
                continue
            done = True
        if parameter.default is parameter.empty and not several:
            raise TypeError(
                f"{name_of(function)} takes {name!r}, but no value is there for it: a handler takes the payload, and parameters annotated "
                "Delivery"
            )
        if wants_delivery:
            raise TypeError(
                f"{name_of(function)} takes the Delivery as {name!r}, which must be positional: put it right after the payload"
            )
    return arguments


def _roots(function: Callable[..., object], arguments: list[_Argument], claim: str | None) -> Roots:
    """Return what a path can begin with. If the function takes the delivery only, the payload is its ``data``."""
    parameters = inspect.signature(function).parameters
    starts = [f"{a.name}[0]" if a.several else a.name for a in sorted(arguments, key=lambda a: a.delivery)]
    start = "" if not starts else f"{starts[0]}.data" if all(a.delivery for a in arguments) else starts[0]
    return roots_of(function, [parameters[a.name] for a in arguments], claim, start)


def _source(source: KeySource) -> KeySource:
    """Return a callable that takes a Delivery as one with the parameter ``_delivery``."""
    if not callable(source):
        return source
    try:
        first = next(iter(inspect.signature(source).parameters), None)
    except (TypeError, ValueError):  # operator.itemgetter and other builtins have no signature
        first = None
    if first is None or annotation_of(source, first) is not Delivery:
        return source

    def named(_delivery: Delivery) -> object:
        return source(_delivery)

    return named


def _data_of(_delivery: Delivery) -> object:
    return _delivery.data

"""From a function's signature and options to its arguments, key and fingerprint for each delivery."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import msgspec

from onceward.batch.batch import Reading
from onceward.claim import signatures as inputs
from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.errors import KeyMissing
from onceward.keys.ledger_keys import fingerprint_of
from onceward.results.classes import is_model
from onceward.results.codec import Codec

if TYPE_CHECKING:
    from onceward.claim.signatures import KeySource

Payload = Callable[[Delivery], object]
_LATE: Final = object()  # stands for an annotation that names what is not defined yet
_AS_IT_IS: Final = (object, Any)
_BY_PLACE: Final = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


class Reader:
    """Reads deliveries for one function.

    Args:
        function: takes the payload as its first parameter, converted to what that is annotated with; a parameter annotated
            ``Delivery`` gets the delivery, one annotated ``Claim`` the claim (which is not filled in here).
        key: see :class:`onceward.aws.events.handler.Settings`; None for the delivery's own.
        fingerprint: the same; None for none.

    Raises:
        TypeError, ValueError: the function takes what nobody gives it, or an option does not fit.
    """

    def __init__(
        self, function: Callable[..., object], key: "KeySource | None", fingerprint: "KeySource | bool | None"
    ) -> None:
        self._arguments = _arguments(function)
        self._key = None if key is None else _source("key", key)
        self._fingerprint: Callable[[Delivery, tuple[object, ...]], object] | None = None
        if fingerprint is True:
            self._fingerprint = lambda delivery, _: delivery.data
        elif fingerprint is not None and fingerprint is not False:
            self._fingerprint = _source("fingerprint", fingerprint)

    def read(self, delivery: Delivery) -> Reading:
        """Return what is to be known of a delivery before the function runs.

        Raises:
            MalformedRecord: it cannot be read, or its payload is not what the function takes.
            KeyMissing: it has no key.
        """
        if delivery.fault is not None:
            raise delivery.fault
        args = tuple(argument(delivery) for argument in self._arguments)
        key = self._key_of(delivery, args)
        return Reading(
            args, key, None if self._fingerprint is None else fingerprint_of(self._fingerprint(delivery, args))
        )

    def _key_of(self, delivery: Delivery, args: tuple[object, ...]) -> object:
        if self._key is None:
            if delivery.key is None:
                raise KeyMissing(
                    f"this record of {delivery.source} lacks what its key is made of by default; give key=, and see in "
                    "docs/lambda.md what that is"
                )
            return delivery.key
        try:
            return self._key(delivery, args)
        except (LookupError, AttributeError) as error:  # of a callable: order["id"], order.id
            raise KeyMissing(
                f"the key is missing from the payload, and the handler did not run: key= raised {error!r}"
            ) from error


# --- arguments ------------------------------------------------------------------------------------------------------


def _arguments(function: Callable[..., object]) -> list[Payload]:
    """Return what makes the arguments of a function, in the order of its parameters, of a delivery."""
    claim = inputs.describe(function).parameter
    found: list[Payload] = []
    given = done = False
    for name, parameter in inspect.signature(function).parameters.items():
        if (claim is not None and name == claim.name) or parameter.kind is parameter.VAR_KEYWORD:
            continue
        annotation = _annotation(function, name)
        wants_delivery = annotation is Delivery or Delivery in get_args(annotation)
        if parameter.kind is parameter.VAR_POSITIONAL or (parameter.kind in _BY_PLACE and not done):
            if wants_delivery:
                found.append(lambda delivery: delivery)
                continue
            if not given:
                found.append(_payload(function, name, annotation))
                given = True
                continue
            done = True
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise TypeError(
                f"{_called(function)} takes {name!r}, which nobody gives it: a handler takes the payload, and by place a parameter "
                "annotated Delivery"
            )
        if wants_delivery:
            raise TypeError(
                f"{_called(function)} takes the Delivery as {name!r}, which cannot be given by place: put it after the payload"
            )
    return found


def _annotation(function: Callable[..., object], name: str) -> object:
    try:
        return inputs.hint(function, name)
    except (KeyError, AttributeError, TypeError):  # it has none, or is of a kind that has none
        return object
    except NameError:
        written = inspect.signature(function).parameters[name].annotation
        return Delivery if written in {"Delivery", "aws.Delivery", "onceward.aws.Delivery"} else _LATE


def _payload(function: Callable[..., object], name: str, annotation: object) -> Payload:
    if annotation is not _LATE:
        return _converter(function, annotation)
    ready: list[Payload] = []

    def late(delivery: Delivery) -> object:
        if not ready:
            try:
                ready.append(_converter(function, inputs.hint(function, name)))
            except NameError as error:
                raise TypeError(
                    f"{_called(function)}: its annotations name {error.name!r}, which is not defined when it is called; import "
                    "it at run time, or leave the annotation out"
                ) from error
        return ready[0](delivery)

    return late


def _converter(function: Callable[..., object], annotation: object) -> Payload:
    """Return what makes the payload of a delivery what a parameter is annotated with; it raises MalformedRecord."""
    if any(annotation is kind for kind in _AS_IT_IS):
        return lambda delivery: delivery.data
    convert = _conversion(function, annotation)

    def checked(delivery: Delivery) -> object:
        try:
            return convert(delivery)
        except Exception as error:
            raise MalformedRecord(
                f"the payload is not what {_called(function)} takes, {annotation!r}, and it did not run: {error}"
            ) from error

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
            f"{_called(function)}: a payload cannot be made a {annotation!r}: {error.__cause__ or error}. Annotate the parameter "
            "with a type that msgspec or pydantic decodes (dict, dataclass, Struct, TypedDict, a model), or Delivery, or not "
            "at all"
        ) from error

    def convert(delivery: Delivery) -> object:
        if delivery.body is not None:
            try:
                return decoder.decode(delivery.body)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                pass  # it is no JSON, and may be wanted as the text that it is
        return msgspec.convert(delivery.data, cast("type[object]", annotation), dec_hook=_from_builtin)

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
    """Let pydantic read JSON by itself: its strict types take more from JSON than from Python's values."""
    if delivery.body is not None:
        return cast("object", model.model_validate_json(delivery.body))
    return cast("object", model.model_validate(delivery.data))


def _from_builtin(kind: type, value: object) -> object:
    if kind is object:
        return value
    return kind.model_validate(value)  # type: ignore[attr-defined]  # Codec lets through pydantic models only, besides


# --- keys -----------------------------------------------------------------------------------------------------------


def _source(option: str, source: "KeySource") -> Callable[[Delivery, tuple[object, ...]], object]:
    if isinstance(source, str):
        return _path(option, source)
    if not callable(source):
        raise TypeError(f"{option}={source!r}: give a JMESPath expression over the payload, or a callable")
    try:
        first = next(iter(inspect.signature(source).parameters), None)
    except (TypeError, ValueError):  # operator.itemgetter and other builtins tell nothing
        first = None
    if first is not None and _annotation(source, first) is Delivery:
        return lambda delivery, _: source(delivery)
    return lambda delivery, args: source(args[0] if args else delivery.data)


def _path(option: str, expression: str) -> Callable[[Delivery, tuple[object, ...]], object]:
    from onceward.keys.paths import Path

    path = Path(expression, option)
    if not path.fields and not path.uses_whole:
        raise ValueError(f"{option}={expression!r} is the same for every payload; name a field of it, as in 'order.id'")
    strict = option == "key"

    def read(delivery: Delivery, _: tuple[object, ...]) -> object:
        found = path.search(delivery.data)
        if found is None and strict:
            raise KeyMissing(
                f"key={expression!r} found nothing in the payload; the handler did not run. Check the message, or choose a field "
                "that it always has"
            )
        return found

    return read


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))

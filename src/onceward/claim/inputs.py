"""The ``input`` of a record: the arguments of a call, kept so that any worker with its handler can run it to its end.

``{"function": "shop.place", "arguments": {"order": {"id": 7}}}``. Each argument is stored as a result of its parameter's type is.
"""

import inspect
from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Final, cast

import msgspec

from onceward.claim.handler import hint
from onceward.core.policy import Seal
from onceward.errors import InputNotKept
from onceward.keys.signatures import Args, Kwargs, without
from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec
from onceward.results.outcomes import SEALED, sealing

LONGEST: Final = 64 * 1024  # bytes of a record's input: each write of its claim sends it again
_FIX: Final = "Leave keep_input=True out, or give this function what can be kept, such as an id"


class KeptInput(msgspec.Struct, frozen=True):
    """What a record keeps of a call: the function's module and name, and the arguments by name."""

    function: str
    arguments: dict[str, msgspec.Raw]


_DECODER: Final = msgspec.json.Decoder(KeptInput)


def read_input(text: str, seal: Seal | None) -> KeptInput:
    """Return what a record keeps of a call; raises NotReplayable if it cannot be read."""
    if text.startswith(SEALED):
        text = sealing().opened(seal, text)
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise NotReplayable(f"its kept arguments cannot be read: {error}") from error


class InputCodec:
    """How the arguments of one handler's calls are kept.

    Args:
        function: the handler.
        name: its module and name. Functions can share the namespace of their keys.
        claim: its parameter that takes the claim, which is not kept.
        seal: see :class:`onceward.Policy`.

    Raises:
        TypeError: an argument can never be kept.
    """

    def __init__(self, function: Callable[..., object], name: str, claim: str | None, seal: Seal | None) -> None:
        self.name = name
        self._seal = seal
        self._signature = without(function, claim)
        self._codecs: dict[str, Codec] = {}
        for at, parameter in enumerate(self._signature.parameters.values()):
            if at == 0 and parameter.name in {"self", "cls"}:
                raise TypeError(
                    f"{name}: keep_input=True cannot keep {parameter.name}. Guard a plain function; or call the method by "
                    "once.using(keep_input=True).run(key, thing.method, ...), and give thing.method to complete_lapsed()"
                )
            self._codecs[parameter.name] = self._codec(function, parameter)

    def _codec(self, function: Callable[..., object], parameter: inspect.Parameter) -> Codec:
        try:
            kind = hint(function, parameter.name)
        except (KeyError, AttributeError, TypeError, NameError):
            return Codec()  # without an annotation that can be read, each by its own type
        if parameter.kind is parameter.VAR_POSITIONAL:
            kind = GenericAlias(tuple, (kind, ...))
        elif parameter.kind is parameter.VAR_KEYWORD:
            kind = GenericAlias(dict, (str, kind))
        try:
            return Codec(kind)
        except TypeError as error:
            raise TypeError(
                f"{self.name}: keep_input=True cannot keep the argument {parameter.name!r} of type {kind!r}: "
                f"{error.__cause__}. {_FIX}"
            ) from error

    def encode(self, args: Args, kwargs: Kwargs) -> str:
        """Return the text to keep of a call.

        Raises:
            InputNotKept: an argument cannot be encoded, the seal failed, or all of them take more than 64 KiB.
            TypeError: the arguments do not fit the function.
        """
        arguments = self._signature.bind(*args, **kwargs).arguments
        try:
            text = self._encode(arguments)
        except Exception as error:  # encoding may run a user's code
            raise InputNotKept(f"{self.name}: {error}. Nothing ran. {_FIX}") from error
        if (size := len(text.encode())) > LONGEST:
            raise InputNotKept(
                f"{self.name}: keep_input=True keeps at most {LONGEST} bytes of arguments, and these take {size}. Nothing ran. "
                f"{_FIX}"
            )
        return text

    def _encode(self, arguments: Mapping[str, object]) -> str:
        parts: dict[str, msgspec.Raw] = {}
        for name, value in arguments.items():
            try:
                parts[name] = msgspec.Raw(self._codecs[name].encode(value).encode())
            except NotReplayable as error:
                raise NotReplayable(f"keep_input=True cannot keep the argument {name!r}: {error}") from error
        text = msgspec.json.encode(KeptInput(self.name, parts)).decode()
        return text if self._seal is None else cast("str", sealing().sealed(self._seal, text))

    def decode(self, call_input: KeptInput) -> tuple[Args, Kwargs]:
        """Return the arguments of a kept call; raises NotReplayable if they do not fit the function today."""
        values: dict[str, object] = {}
        for name, text in call_input.arguments.items():
            if name not in self._codecs:
                raise NotReplayable(f"its call had an argument {name!r}, which {self.name} does not take today")
            try:
                values[name] = self._codecs[name].decode(bytes(text).decode())
            except NotReplayable as error:
                raise NotReplayable(f"its argument {name!r} cannot be read: {error.__cause__ or error}") from error
        call = inspect.BoundArguments(self._signature, values)
        try:
            self._signature.bind(*call.args, **call.kwargs)
        except TypeError as error:
            raise NotReplayable(f"its call does not fit {self.name} today: {error}") from error
        return call.args, call.kwargs

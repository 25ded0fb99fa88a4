"""How a handler's results are stored, by its return annotation."""

from collections.abc import Callable

from onceward.claim.handler import Handler, hint
from onceward.results.codec import Codec


def codec_of(function: Callable[..., object], handler: Handler) -> Codec:
    """Return the codec of a handler; raises TypeError if results of its return type cannot be stored."""
    return LateCodec(function) if handler.hints_late else Codec(handler.annotation)


class LateCodec(Codec):
    """The codec of a handler whose annotations use names that are defined later. It is made at the first use."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self._function: Callable[..., object] | None = function
        self.resolve = self._resolve

    def _resolve(self) -> None:
        """Read the annotations now; raises TypeError if they still use an undefined name, or a type that cannot be stored."""
        if self._function is None:
            return
        try:
            annotation = hint(self._function, "return")
        except NameError as error:
            raise TypeError(
                f"{self._function.__qualname__}: its annotations name {error.name!r}, which is not defined when it is called; "
                "import it at run time, or leave the return annotation out"
            ) from error
        Codec.__init__(self, annotation)
        self._function = self.resolve = None

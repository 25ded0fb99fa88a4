"""Reads key and fingerprint of an input, for calls, batches, messages, checkpoints and lines."""

import inspect
from collections.abc import Callable, Collection, Mapping

from onceward.errors import KeyMissing
from onceward.keys.ledger_keys import fingerprint_of
from onceward.keys.paths import Roots, StrictPath

KeySource = str | Callable[..., object]
Named = Mapping[str, object]
Read = Callable[[Named, Named], object]


class KeyReader:
    """Reads the key and the fingerprint of inputs by name.

    Args:
        key: a JMESPath expression (jmespath.org) that begins with one of the roots, or a callable. A callable gets the inputs
            that it names. If its only parameter has another name, it gets the first one.
        fingerprint: the same, or True for all inputs, or None for no fingerprint.
        roots: the names of the inputs.
        option: the name of the key in errors.
        more: further names for a callable, but not for a path.
        handler: the name of the handler, for errors.
        filled: the inputs that a framework fills in, which are no part of the fingerprint of all inputs.

    Attributes:
        chain: the names in a key's path such as ``order.id``; empty for any other key.
        prints: whether a fingerprint is wanted.
        by_path: whether the key or the fingerprint is a path; if not, the inputs for paths are not used.

    Raises:
        TypeError, ValueError: an option is neither a path nor a callable, or names something that is not an input.
    """

    def __init__(
        self,
        key: KeySource,
        fingerprint: KeySource | bool | None,
        roots: Roots,
        *,
        option: str = "key",
        more: tuple[str, ...] = (),
        handler: str = "",
        filled: Collection[str] = (),
    ) -> None:
        self._option, self._whose = option, f"{handler}: " if handler else ""
        self._key, self.chain = _reader(option, key, roots, more)
        self._fingerprint: Read | None = None
        if fingerprint is True:
            left_out = {"self", "cls", *filled}
            self._fingerprint = lambda named, _: {name: named[name] for name in named if name not in left_out}
        elif fingerprint is not None and fingerprint is not False:
            self._fingerprint, _ = _reader("fingerprint", fingerprint, roots, more)
        self.prints = self._fingerprint is not None
        self.by_path = isinstance(key, str) or isinstance(fingerprint, str)

    def key(self, named: Named, given: Named) -> object:
        """Return the key from the inputs for paths (``named``) or callables (``given``); raises KeyMissing."""
        try:
            return self._key(named, given)
        except KeyMissing as error:
            error.args = (f"{self._whose}{error}", *error.args[1:])
            raise
        except (LookupError, AttributeError) as error:  # in a callable: order["id"], order.id
            raise KeyMissing(
                f"{self._whose}the key is missing from the input, and nothing ran: {self._option}= raised {type(error).__name__}"
            ) from error

    def fingerprint(self, named: Named, given: Named) -> str | None:
        """Return the fingerprint of an input, or None if none is wanted. For the arguments, see :meth:`key`."""
        return None if self._fingerprint is None else fingerprint_of(self._fingerprint(named, given))


def _reader(option: str, source: KeySource, roots: Roots, more: tuple[str, ...]) -> tuple[Read, tuple[str, ...]]:
    """Return the reader of a source, and its ``chain`` of names."""
    if isinstance(source, str):
        return _path_reader(option, source, roots)
    if not callable(source):
        raise TypeError(f"{option}={source!r}: give a JMESPath expression over the input, or a callable")
    names = (*roots.names, *more)
    try:
        takes = [
            p.name
            for p in inspect.signature(source).parameters.values()
            if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}
            and (p.default is p.empty or p.name in names)
        ]
    except (TypeError, ValueError):  # operator.itemgetter and other builtins have no signature
        takes = ["?"]
    if len(takes) == 1 and (takes[0] in names or roots.names):
        mine = [name for name in roots.names if name not in {"self", "cls"}] or roots.names
        only = takes[0] if takes[0] in names else mine[0]
        return lambda _, given: source(given[only]), ()
    if takes and all(name in names for name in takes):
        return lambda _, given: source(**{name: given[name] for name in takes}), ()
    raise ValueError(
        f"{option}= takes {', '.join(takes) or 'nothing'}, which {roots.fault}: let it name those inputs that it needs"
    )


def _path_reader(option: str, expression: str, roots: Roots) -> tuple[Read, tuple[str, ...]]:
    path = StrictPath(expression, option, roots)
    if option == "fingerprint":
        return lambda named, _: path.search(named), path.chain

    def read(named: Named, _given: Named) -> object:
        value = path.search(named)
        if value is None:
            raise KeyMissing(
                f"{option}={expression!r} found nothing in the input, and nothing ran. Check the input, or choose a field that "
                "it always has"
            )
        return value

    return read, path.chain

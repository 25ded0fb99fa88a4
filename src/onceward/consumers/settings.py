"""Settings that pass to a broker's library by name."""

from collections.abc import Callable, Mapping
from inspect import signature

import msgspec


def library_settings(
    settings: Mapping[str, object] | None, library: Callable[..., object], name: str
) -> dict[str, object]:
    """Return the settings for a call of a ``library``. Text becomes a number or a bool if the default is one.

    A password of digits stays text.

    Raises:
        ValueError: the library, whose ``name`` is for the error, has no such setting, or takes no such value.
    """
    known, found = signature(library).parameters, dict(settings or {})
    for setting, value in found.items():
        if setting not in known:
            raise ValueError(f"settings: {name} has no {setting}")
        kind = int if setting.endswith("_ms") else type(known[setting].default)
        if isinstance(value, str) and kind in {bool, float, int}:
            try:
                found[setting] = msgspec.convert(value, kind, strict=False)
            except msgspec.ValidationError:
                raise ValueError(f"settings: {setting} of {name}: give a value of type {kind.__name__}") from None
    return found

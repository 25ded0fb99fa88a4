"""The path of a request that a proxy passes on: what is sent, and what the rules compare with their routes."""

import re
from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import quote, unquote

from onceward.http.rules import Rules

_WHOLE_URL: Final = re.compile(rb"https?://[a-z0-9.:_\[\]-]+(/[^?#]*)?", re.IGNORECASE).fullmatch
_FOREIGN: Final = re.compile(r"[\x00-\x1f\x7f]").search  # some readers end a path at a NUL or a line break
_SLASH: Final = re.compile(rb"%2f", re.IGNORECASE).sub


def ambiguity(scope: MutableMapping[str, Any], rules: Rules) -> str | None:
    """Return why servers can read the path of a request in two ways; None if they cannot: then the scope gets it as it is sent."""
    path = _path_of(scope)
    if path is None:
        return "has no path that all servers read alike"
    paths = _readings(path)
    if len({rules.route(scope["method"].upper(), one) for one in paths}) > 1:
        return "has a path that servers read in two ways, and the routes differ for them"
    scope["raw_path"], scope["path"] = path, paths[0]
    return None


def _path_of(scope: Mapping[str, Any]) -> bytes | None:
    """Return the encoded path of a request, or ``*``; None if two servers can see different ones in its target."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    if not path.startswith(b"/") and path != b"*":
        if (match := _WHOLE_URL(path)) is None:  # a whole URL (RFC 9112, section 3.2.2)
            return None
        path = match[1] or b"/"
    decoded = unquote(path.decode("utf-8", "replace"))
    # The application may resolve dot segments, and then see another path than the rules.
    parts = decoded.replace("\\", "/").split("/")
    if any(part.partition(";")[0] in {".", ".."} for part in parts):
        return None
    return None if b"\\" in path or b"#" in path or _FOREIGN(decoded) else path


def _readings(path: bytes) -> list[str]:
    r"""Return the paths that applications can see in an encoded one. The first is the plain decoding.

    Some keep ``%2F`` as a part of a name, some take ``\`` for a slash, and some drop parameters (``;``, RFC 3986, section 3.3).
    """
    plain = unquote(path.decode("utf-8", "replace"))
    if b"%" not in path and b";" not in path:
        return [plain]
    kept = unquote(_SLASH(b"%252F", path).decode("utf-8", "replace"))
    seen = [plain, kept, plain.replace("\\", "/")]
    return seen + ["/".join(part.partition(";")[0] for part in one.split("/")) for one in seen]

"""A WSGI environ (PEP 3333) as the rules see it, and its body. Django's ``request.META`` is an environ, too."""

from collections.abc import Mapping, MutableMapping
from io import BytesIO
from typing import Protocol, cast

from onceward.http.answer import Answer
from onceward.http.request import BadRequest, Request, rooted
from onceward.http.route import KeyedRequest, PassedRequest, PendingRequest
from onceward.http.rules import Rules


class Stream(Protocol):
    """Something with the bytes of a body, such as ``wsgi.input``."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""


def ask(rules: Rules, environ: MutableMapping[str, object]) -> KeyedRequest | PassedRequest | Answer | None:
    """Return what the rules decide on a request; None if it passes unchanged. Its body is read and put back."""
    pending = rules.begin(request_of(environ))
    if not isinstance(pending, PendingRequest):
        return pending
    try:
        body = body_of(environ, rules.max_request)
    except BadRequest as error:
        return rules.unreadable(str(error))
    environ["wsgi.input"] = BytesIO(body)
    return rules.ask(pending, body)


def request_of(environ: Mapping[str, object], native: Mapping[str, object] | None = None) -> Request:
    """Return the request of an environ. Its path is the one that the application routes by, without ``SCRIPT_NAME``.

    The identity is ``REMOTE_USER``, which a server sets if it has authenticated the caller (RFC 3875, section 4.1.11).
    ``native`` is what a ``scope`` is given instead of the environ.
    """
    return Request(
        str(environ["REQUEST_METHOD"]).upper(),  # as Django and Werkzeug read it
        rooted(_text(environ, "PATH_INFO")),
        str(environ.get("QUERY_STRING", "")),
        _lines(environ),
        cast("str | None", environ.get("REMOTE_USER") or None),
        environ if native is None else native,
        _text(environ, "SCRIPT_NAME").rstrip("/"),
    )


def body_of(environ: Mapping[str, object], most: int) -> bytes:
    """Return the body of a request, or its first ``most`` + 1 bytes if it has more than ``most``.

    Raises:
        BadRequest: it ends before its Content-Length, or its end is unknown.
    """
    length = str(environ.get("CONTENT_LENGTH") or "")
    if length and not (length.isascii() and length.isdecimal()):
        raise BadRequest("its Content-Length is not a number")
    stream = cast("Stream", environ["wsgi.input"])
    if length and "chunked" not in str(environ.get("HTTP_TRANSFER_ENCODING", "")).lower():
        wanted = min(int(length), most + 1)
        body = read(stream, wanted)
        if len(body) < wanted:
            raise BadRequest(f"it has {len(body)} bytes, and its Content-Length is {length}")
        return body
    if environ.get("wsgi.input_terminated"):  # the server decodes chunked bodies and ends them
        return read(stream, most + 1)
    if length or environ.get("HTTP_TRANSFER_ENCODING"):
        raise BadRequest("this server does not decode chunked bodies; send it with a Content-Length")
    return b""


def read(stream: Stream, size: int) -> bytes:
    """Return the next ``size`` bytes of a stream, or fewer at its end."""
    parts: list[bytes] = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _lines(environ: Mapping[str, object]) -> list[tuple[str, str]]:
    lines = [
        (name[5:].replace("_", "-").lower(), str(value))
        for name, value in environ.items()
        if name.startswith("HTTP_") and name not in {"HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}
    ]
    # an empty one counts as absent
    present = [name for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)]
    return lines + [(name.replace("_", "-").lower(), str(environ[name])) for name in present]


def _text(environ: Mapping[str, object], name: str) -> str:
    """Return a path. An environ holds its bytes as Latin-1 text."""
    return str(environ.get(name, "")).encode("latin-1", "replace").decode("utf-8", "surrogateescape")

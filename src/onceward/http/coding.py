"""Content codings. A client's retry may be compressed anew, and may not take gzip for its answer as the first one did."""

import zlib
from collections.abc import Sequence
from typing import Final

from onceward.http.answer import Answer

_CODING: Final = "content-encoding"
_WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's numbers of the formats
# These are about the bytes as they were coded.
_OF_THE_BYTES: Final = frozenset({_CODING, "content-digest", "content-md5", "digest", "etag", "repr-digest"})
LARGEST: Final = 1 << 24  # bytes of a decoded body: 1 MiB of gzip can be 1 GiB


def suited(answer: Answer, accepted: Sequence[str]) -> Answer:
    """Return an answer that its client can read: decoded, if it is in gzip or deflate and the client does not take that.

    Args:
        answer: the recorded answer. What cannot be decoded here, such as brotli, is returned as it is.
        accepted: the lines of the request's Accept-Encoding (RFC 9110, section 12.5.3). A client that sends none may not decode.
    """
    codings = [value.strip().lower() for name, value in answer.headers if name.lower() == _CODING]
    if len(codings) != 1 or codings[0] not in _WINDOWS or _takes(codings[0], accepted):
        return answer
    try:
        body = plain(answer.body, codings)
    except TooLargeDecoded:
        return answer
    if body is answer.body:
        return answer
    headers = [(name, value) for name, value in answer.headers if name.lower() not in _OF_THE_BYTES]
    return Answer(answer.status, headers, body)


class TooLargeDecoded(ValueError):
    """A decoded body has more bytes than :data:`LARGEST`."""


def plain(body: bytes, codings: Sequence[str]) -> bytes:
    """Return the decoded body of a request or an answer. What cannot be decoded here, such as brotli, is returned as it is.

    Args:
        body: as it was sent.
        codings: the lines of Content-Encoding.

    Raises:
        TooLargeDecoded: it is too large.
    """
    coding = codings[0].strip().lower() if len(codings) == 1 else ""
    if not body or coding not in _WINDOWS:
        return body
    parts: list[bytes] = []
    rest, left = body, LARGEST
    while rest:  # gzip can have several members (RFC 1952, section 2.2)
        decoder = zlib.decompressobj(_WINDOWS[coding])
        try:
            parts.append(decoder.decompress(rest, left + 1))
        except zlib.error:
            return body
        left -= len(parts[-1])
        if left < 0:
            raise TooLargeDecoded
        if not decoder.eof:
            return body
        rest = decoder.unused_data
    return b"".join(parts)


def _takes(coding: str, accepted: Sequence[str]) -> bool:
    weights = {}
    for choice in ",".join(accepted).lower().split(","):
        name, _, weight = choice.replace(" ", "").replace("\t", "").partition(";q=")
        weights[name] = weight.strip("0.") != "" or not weight
    return weights.get(coding.removeprefix("x-"), weights.get(coding, weights.get("*", False)))

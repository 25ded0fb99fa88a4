"""Where a request ends: h11's parser, without what another reader of the same bytes can take otherwise (RFC 9112, 2.2, 6.1, 7.1).

This is the one place where framing is judged, for ``serve``, the dashboard and ``proxy``. After a refusal no further byte is read.
"""

import re
from typing import Any, Final

import h11

_BAD_LINE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n)|\n[ \t]").search
_LENGTH: Final = re.compile(rb"\ncontent-length:([^\r\n]*)", re.IGNORECASE).findall
_CODING: Final = re.compile(rb"\ntransfer-encoding:", re.IGNORECASE).search
_VERSION: Final = re.compile(rb"[^\r\n]* HTTP/1\.1\r\n").match


class StrictConnection(h11.Connection):
    """The server's side of a connection.

    h11 takes lines that end with a bare LF, folded lines, equal lengths twice, and Transfer-Encoding beside Content-Length
    or in HTTP/1.0. This refuses them.
    """

    _chunked = False  # whether the body of the request that is read has chunks
    _last = b""  # a CR that was read without its LF

    def next_event(self) -> Any:
        """As h11 says. Raises RemoteProtocolError also for an ambiguous request."""
        if self.their_state is not h11.IDLE and not (self._chunked and self.their_state is h11.SEND_BODY):
            return super().next_event()
        before = self.trailing_data[0]
        event = super().next_event()
        read = before[: len(before) - len(self.trailing_data[0])]
        if isinstance(event, h11.Request):
            self._check_head(read)
        elif isinstance(event, h11.Data):
            self._check_lines(read[: len(read) - len(event.data)])
        else:
            self._check_lines(read)
        return event

    def _check_head(self, head: bytes) -> None:
        lengths = _LENGTH(head)
        self._chunked, self._last = _CODING(head) is not None, b""
        if _BAD_LINE(head):
            raise h11.RemoteProtocolError("a line of the head is folded, or does not end with CR and LF")
        if len(lengths) > 1 or b"," in b"".join(lengths):
            raise h11.RemoteProtocolError("the request has more than one Content-Length")
        if self._chunked and lengths:
            raise h11.RemoteProtocolError("the request has both Transfer-Encoding and Content-Length")
        if self._chunked and not _VERSION(head):
            raise h11.RemoteProtocolError("the request has Transfer-Encoding, which only HTTP/1.1 knows")

    def _check_lines(self, lines: bytes) -> None:
        """Check the lines between chunks, or a part of them."""
        lines = self._last + lines
        self._last = lines[-1:] if lines.endswith(b"\r") else b""
        if _BAD_LINE(lines.removesuffix(b"\r")):
            raise h11.RemoteProtocolError("a line between chunks is folded, or does not end with CR and LF")

"""Events as lines of JSON, for any collector of logs."""

import json
import sys
from datetime import UTC, datetime
from typing import TextIO

from onceward.errors import OncewardError, Parked
from onceward.observe.events import Event, Happening


class JsonLines:
    """An observer that writes each event as one line of JSON: ``Once(url, observe=[JsonLines()])``.

    An error is its class, and for errors of onceward also the text. The text of a handler's own exception may quote the payload,
    and is left out.

    Args:
        stream: where the lines go; None is the standard output at the time of the event.
        keys: whether lines have the keys. Switch it off if your keys are private.
        requests: whether requests to the store are written, too: two or more for each call.
    """

    def __init__(self, stream: TextIO | None = None, *, keys: bool = True, requests: bool = False) -> None:
        self._stream, self._keys, self._requests = stream, keys, requests

    def __call__(self, event: Happening) -> None:
        """Write an event."""
        if not isinstance(event, Event) and not self._requests:
            return
        fields: dict[str, object] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": event.kind}
        for name, value in event._asdict().items():
            if value is None or value == "" or value is False or (name == "key" and not self._keys):
                continue
            fields[name] = plain_error(value, keys=self._keys) if isinstance(value, Exception) else value
        stream = sys.stdout if self._stream is None else self._stream
        stream.write(json.dumps(fields) + "\n")  # one write, or lines of two threads mix
        stream.flush()


def plain_error(error: Exception | str, *, keys: bool = True) -> str:
    """Return an error without what may quote a payload, or without what may quote a key."""
    if isinstance(error, str):
        return error
    name = type(error).__name__
    is_ours = isinstance(error, OncewardError) and not isinstance(
        error, Parked
    )  # Parked quotes the handler's last error
    return f"{name}: {error}" if is_ours and keys else name

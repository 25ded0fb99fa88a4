"""Events as lines of JSON, for any collector of logs."""

import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, TextIO

import msgspec

from onceward.errors import OncewardError, Parked
from onceward.observe.events import Event, Happening

_ENCODER: Final = msgspec.json.Encoder()


class JsonLines:
    """An observer that writes each event as one line of JSON: ``Once(url, observe=[JsonLines()])``.

    An error is its class, and for errors of onceward also the text. The text of a handler's own exception may quote the payload,
    and is left out.

    Args:
        stream: where the lines go; None is the standard output at the time of the event.
        keys: whether lines have the keys. Switch it off if your keys are private.
        requests: whether requests to the store are written, too: two or more for each call.
        now: the time of a line, in seconds since the epoch.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        keys: bool = True,
        requests: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._stream = stream
        self._keys = keys
        self._requests = requests
        self._now = now
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return partial(JsonLines, self._stream, keys=self._keys, requests=self._requests, now=self._now), ()

    def __call__(self, event: Happening) -> None:
        """Write an event."""
        if not isinstance(event, Event) and not self._requests:
            return
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {"time": at, "kind": event.kind}
        for name, value in event._asdict().items():
            if value is None or value == "" or (name == "key" and not self._keys) or value is False:
                continue
            fields[name] = plain_error(value, keys=self._keys) if isinstance(value, Exception) else value
        stream = sys.stdout if self._stream is None else self._stream
        with self._lock:  # or lines of two threads mix
            try:
                stream.write(_ENCODER.encode(fields).decode() + "\n")
            except UnicodeEncodeError:  # a lone surrogate, or a stream that is not UTF-8
                stream.write(json.dumps(fields) + "\n")
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

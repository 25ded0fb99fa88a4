"""An adapter for requests."""

import time
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from onceward.clients.rules import SendAgain


class RequestsAdapter(HTTPAdapter):
    """Sends each request with a key: ``session.mount("https://", RequestsAdapter())``.

    Args:
        rules: when a request is sent again. urllib3's own ``max_retries`` stays 0.
        **options: those of ``requests.adapters.HTTPAdapter``.

    Raises:
        requests.RequestException: the last try failed.
        LeaseLost: the handler has lost its claim.
        ValueError: the handler has sent such a request before, so the two need keys of their own.
    """

    def __init__(self, rules: SendAgain | None = None, **options: Any) -> None:
        self._rules = rules or SendAgain()
        super().__init__(**options)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rules": self._rules}

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        """Send a request until it is answered."""
        request = request.copy()
        url = (request.url or "").partition("?")[0].partition("#")[0]
        whole = request.body is None or isinstance(request.body, bytes | str)
        sending = self._rules.sending(request.method or "", url, request.headers, whole=whole)
        while True:
            try:
                response = super().send(request, *args, **options)
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                pause = sending.pause()
                if pause is None:
                    raise
            else:
                pause = sending.pause(response.status_code, response.headers)
                if pause is None:
                    return response
                response.close()
            time.sleep(pause)
            sending.check()

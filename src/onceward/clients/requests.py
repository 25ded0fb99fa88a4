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

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        """Send a request until it is answered."""
        rules = self._rules
        url = (request.url or "").partition("?")[0].partition("#")[0]
        given = request.headers.get(rules.header)
        given = given.decode("latin-1") if isinstance(given, bytes) else given
        whole = request.body is None or isinstance(request.body, bytes | str)
        sending = rules.sending(request.method or "", url, given, whole=whole)
        if sending.header is not None:
            name, value = sending.header
            request.headers[name] = value
        while True:
            try:
                response = super().send(request, *args, **options)
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                pause = sending.pause(None)
                if pause is None:
                    raise
            else:
                headers = response.headers
                pause = sending.pause(response.status_code, headers.get("retry-after"), headers.get("date"))
                if pause is None:
                    return response
                response.close()
            time.sleep(pause)

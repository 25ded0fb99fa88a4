"""Sends the requests of pipelines, and says whether one that failed may have been made."""

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx
import msgspec

from onceward.clients.httpx import AsyncHttpxTransport
from onceward.clients.rules import HEADER, SendAgain
from onceward.pipelines.call import StepFailed, StepNotMade

_SHOWN: Final = 200  # characters of an answer that an error quotes
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
# Of these nobody knows what became of the request. 409: the first one may still run.
_OPEN: Final = frozenset({408, 409, 500, 502, 503, 504})
_TRIES: Final = "onceward"


class Requester:
    """Sends requests over connections of its own.

    Args:
        key_header: the header of the key; None for none.
        tries: how often a request is sent at most.
        within: seconds for which it is sent again.
        timeout: seconds for one answer.
        expected: the statuses that are a result; none means all of 200 to 299.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self, key_header: str | None, tries: int, within: float, timeout: float, expected: frozenset[int]
    ) -> None:
        self._rules = SendAgain(times=tries, within=within, methods=(), header=key_header or HEADER)
        self._key_header, self._timeout, self._expected = key_header, timeout, expected
        self._client: httpx.AsyncClient | None = None

    async def ask(
        self, method: str, url: str, query: dict[str, str], headers: dict[str, str], content: bytes | None, key: str
    ) -> dict[str, Any]:
        """Make a request and return its answer.

        Raises:
            StepNotMade: it failed, and certainly had no effect.
            StepFailed: it failed.
            LeaseLost: the claim was lost meanwhile.
        """
        if self._key_header is not None:
            headers[self._key_header] = f'"{key}"' if self._key_header.lower() == HEADER.lower() else key
        if self._client is None:
            transport = AsyncHttpxTransport(_Noting(), self._rules)
            no_cookies = CookieJar(
                DefaultCookiePolicy(allowed_domains=())
            )  # one message's would go with another's request
            self._client = httpx.AsyncClient(
                transport=transport, timeout=self._timeout, follow_redirects=False, cookies=no_cookies
            )
        in_doubt: list[str] = []
        where = f"{method} {url.partition('?')[0]}"
        try:
            answer = await self._client.request(
                method,
                httpx.URL(url).copy_merge_params(query),
                headers=headers,
                content=content,
                extensions={_TRIES: in_doubt},
            )
        except (httpx.TransportError, httpx.InvalidURL) as error:
            kind = StepFailed if in_doubt else StepNotMade
            raise kind(f"{where}: {str(error) or type(error).__name__}") from error
        status = answer.status_code
        if status in self._expected or (not self._expected and 200 <= status < 300):
            return {"status": status, "body": _body(answer)}
        refused = 400 <= status < 500 and status not in _OPEN and not in_doubt
        text = answer.text[:_SHOWN]
        raise (StepNotMade if refused else StepFailed)(f"{where} answered {status}{text and f': {text!r}'}")

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class _Noting(httpx.AsyncHTTPTransport):
    """Notes each try after which the request may have been made."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        in_doubt = request.extensions[_TRIES]
        try:
            response = await super().handle_async_request(request)
        except _UNSENT:
            raise
        except BaseException as error:
            in_doubt.append(type(error).__name__)
            raise
        if response.status_code in _OPEN:
            in_doubt.append(str(response.status_code))
        return response


def _body(answer: httpx.Response) -> Any:
    """Return the decoded JSON of an answer, else its text; None if it is empty."""
    if not answer.content:
        return None
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return msgspec.json.decode(answer.content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # it is shown as it came
    return answer.text

"""Sends the requests of pipelines, and says whether one that failed may have been made."""

import asyncio
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx
import msgspec

from onceward.clients.rules import HEADER, SendAgain
from onceward.pipelines.call import StepFailed, StepNotMade

_SHOWN: Final = 200  # characters of an answer that an error quotes
_UNSENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)
# Of these nobody knows what became of the request. 409: the first one may still run.
_OPEN: Final = frozenset({408, 409, 500, 502, 503, 504})


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
            # One message's cookies would go with another's request. A transport of its own uses no proxy of the environment.
            self._client = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(),
                timeout=self._timeout,
                follow_redirects=False,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            )
        where = f"{method} {url.partition('?')[0]}"
        sent, in_doubt = httpx.Headers(headers), False
        tries = self._rules.sending(method, where, sent, whole=True)
        while True:
            try:
                target = httpx.URL(url).copy_merge_params(query)
                answer = await self._client.request(method, target, headers=sent, content=content)
            except (httpx.TransportError, httpx.InvalidURL) as error:
                in_doubt = in_doubt or not isinstance(error, _UNSENT)
                pause = None if isinstance(error, httpx.InvalidURL) else tries.pause()
                if pause is None:
                    raise (StepFailed if in_doubt else StepNotMade)(
                        f"{where}: {str(error) or type(error).__name__}"
                    ) from error
            else:
                in_doubt = in_doubt or answer.status_code in _OPEN
                pause = tries.pause(answer.status_code, answer.headers)
                if pause is None:
                    break
            await asyncio.sleep(pause)
            tries.check()
        status = answer.status_code
        if status in self._expected or (not self._expected and 200 <= status < 300):
            return {"status": status, "body": _body(answer)}
        is_refusal = 400 <= status < 500 and status not in _OPEN and not in_doubt
        text = answer.text[:_SHOWN]
        raise (StepNotMade if is_refusal else StepFailed)(f"{where} answered {status}{text and f': {text!r}'}")

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


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

"""The step ``http``."""

import re
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlsplit

from msgspec import Meta

from onceward.http.answer import TOKEN
from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage, content_of, text_of
from onceward.pipelines.kit import EffectSettings, Kit
from onceward.pipelines.settings import MESSAGE, Expression, PathFinder, Seconds, Text, given

_PLACE: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
_HEADER_VALUE: Final = re.compile(r"(?:[!-~](?:[ -~\t]*[!-~])?)?")  # RFC 9110, 5.5; httpx sends ASCII


class HttpStep(EffectSettings):
    """Make an HTTP request with a derived Idempotency-Key, and wait for the answer.

    The result has `status` and `body`. A body of JSON is decoded. Redirections are not followed. If a request gets no
    answer, or 408, 409, 425, 429, 502, 503 or 504, it is sent again with the same key, after Retry-After. A POST or
    PATCH without a key is not sent again.

    Attributes:
        url: The URL. A part of its path can be a name in braces, as in /orders/{id}.
        path: The values of the names in braces. Each value becomes one part of the path.
        query: Parameters of the query. A parameter that is null is left out.
        method: The method.
        body: The body: a text unchanged, everything else as JSON. By default the message for POST, PUT and PATCH.
        headers: Headers, as fixed texts, as in Authorization: Bearer ${TOKEN}.
        key_header: The header of the derived key. Use null if the server takes no key. A POST is then not sent again.
        expect: The statuses that count as success. By default 200 to 299.
        tries: How often the request is sent at most, within one attempt.
        within: For how long the request is sent again.
        timeout: How long one answer may take.
    """

    url: Text
    path: dict[str, Expression] = {}
    query: dict[str, Expression] = {}
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    body: Expression | None = None
    headers: dict[str, str] = {}
    key_header: str | None = "Idempotency-Key"
    expect: list[int] = []
    tries: Annotated[int, Meta(ge=1)] = 4
    within: Seconds = given(Seconds("30s"))
    timeout: Seconds = given(Seconds("30s"))

    @property
    def title(self) -> str:
        return f"{self.method} {self.url.partition('?')[0]}"  # a query can hold a secret, and the record has the title

    def build(self, kit: "Kit") -> EffectAction:
        fits = kit.needs("", "httpx", "pipelines")
        self._check(kit)
        body = self.body or (MESSAGE if self.method in {"POST", "PUT", "PATCH"} else None)
        if fits:
            from onceward.pipelines.steps.requests import Requester

            with kit.noting("key_header"):
                requester = Requester(self.key_header, self.tries, self.within, self.timeout, frozenset(self.expect))
                kit.closing(requester.close)

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            url = _PLACE.sub(lambda match: _part(self.path[match[1]], message), self.url)
            query = {name: text_of(value) for name, find in self.query.items() if (value := find(message)) is not None}
            content, kind = (None, None) if body is None else content_of(body(message))
            headers = dict(self.headers)
            if kind is not None and "content-type" not in {name.lower() for name in headers}:
                headers["Content-Type"] = kind
            return await requester.ask(self.method, url, query, headers, content, call.key())

        return make

    def _check(self, kit: "Kit") -> None:
        try:
            parts = urlsplit(self.url)
            _ = parts.port  # it raises for a port that none can be
        except ValueError:  # its text can quote a password
            kit.mistake("url", "this is no URL: its host and port cannot be read")
            return
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None or parts.fragment:
            kit.mistake(
                "url", "give an https:// or http:// URL without a user and a fragment; a header takes credentials"
            )
        outside = _PLACE.findall(self.url.replace(parts.path, "", 1) if parts.path else self.url)
        if outside:
            kit.mistake("url", f"{{{outside[0]}}} must be a part of the path: query: takes what follows the ?")
        names = _PLACE.findall(parts.path)
        for name in names:
            if name not in self.path:
                kit.mistake("url", f"no value fills {{{name}}}. Give it under path:")
        for name, value in self.headers.items():
            if not TOKEN(name):
                kit.mistake(("headers", name), f"{name!r} is not the name of a header")
            elif not _HEADER_VALUE.fullmatch(value):
                kit.mistake(
                    ("headers", name),
                    f"{name}: its value has a character that no header takes, such as the end of a line",
                )
        if self.key_header is not None and self.key_header.lower() in {name.lower() for name in self.headers}:
            kit.mistake("headers", f"{self.key_header}: onceward itself writes it; leave it out")


def _part(find: PathFinder, message: PipelineMessage) -> str:
    """Return a value as one part of a path."""
    value = find(message)
    if value is None or isinstance(value, list | dict) or (text := text_of(value)) in {"", ".", ".."}:
        raise ValueError(f"{find.expression!r} finds {value!r}, which cannot be a part of a path")
    return quote(text, safe="")

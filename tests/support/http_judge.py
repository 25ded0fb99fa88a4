"""A client that judges how a server treats ``Idempotency-Key``, point by point. Any server: ours, a peer's, one of another language.

::

    from http_judge import check

    report = check("https://staging.example/payments", body={"amount": 5}, other={"amount": 6}, headers={"X-Api-Key": "me"})
    print(report)                # one line for each point: its verdict, and what the server answered
    assert not report.failed

It sends requests that have effects, so use a test system.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple
from uuid import uuid4

import httpx

from onceward.core.arguments import check_type

__all__ = ["HttpPoint", "HttpReport", "check"]

Verdict = Literal["holds", "fails", "unknown"]
Choice = Literal["replayed", "again"]
_TOGETHER: Final = 8  # requests of one key at a time
_SHOWN: Final = 60  # characters of an answer


class HttpPoint(NamedTuple):
    """One point of a report.

    Attributes:
        name: what was asked: "first", "replay", "missing", "reused", "concurrent", "scope", "longest", "too long", "refusal" or "failure".
        verdict: "holds", "fails", or "unknown" if nothing told that. "refusal" and "failure" are the server's choice, so they only fail
            if the answer contradicts ``expect``.
        evidence: what the server answered.
    """

    name: str
    verdict: Verdict
    evidence: str


class HttpReport:
    """What a server does: ``points``, in order, or one by its name, as in ``report["replay"]``. Its text is a line for each."""

    def __init__(self, points: Sequence[HttpPoint]) -> None:
        self.points = points

    @property
    def failed(self) -> list[HttpPoint]:
        """The points that fail."""
        return [point for point in self.points if point.verdict == "fails"]

    def __getitem__(self, name: str) -> HttpPoint:
        return next(point for point in self.points if point.name == name)

    def __str__(self) -> str:
        return "\n".join(f"{point.verdict:8}{point.name:12}{point.evidence}" for point in self.points)


def check(
    target: Any,
    *,
    body: object,
    other: object,
    path: str = "/",
    method: str = "POST",
    header: str = "Idempotency-Key",
    quoted: bool = True,
    headers: Mapping[str, str] | None = None,
    stranger: Mapping[str, str] | None = None,
    refused: object = None,
    failing: object = None,
    effects: Callable[[], int] | None = None,
    longest: int | None = 255,
    expect: Mapping[str, Choice] | None = None,
    timeout: float = 30.0,
) -> HttpReport:
    """Send a server the requests of a careless client, and judge its answers.

    Args:
        target: the URL of an endpoint, or an ASGI application, whose lifespan does not run.
        body: of a request that succeeds, as JSON.
        other: of another one that succeeds.
        path: of the endpoint, for an application.
        method: of the requests.
        header: the name of the key's header, or ``body.NAME`` for a key in the JSON body.
        quoted: whether keys are sent in quotes, as the draft says.
        headers: of each request, such as the caller's credential.
        stranger: the headers of another caller; "scope" is unknown without them, and if they are refused with 401 or 403.
        refused: a body that the endpoint answers with 4xx; without it "refusal" is unknown.
        failing: a body that the endpoint answers with 5xx; without it "failure" is unknown.
        effects: returns how many requests the endpoint has begun. Without it only answers are compared, so each effect must answer
            something of its own, such as a new id.
        longest: characters of the longest key; None leaves out both points about that.
        expect: "replayed" or "again" for "refusal" and for "failure".
        timeout: seconds for each request.

    Returns:
        The report. Nothing is raised for a server that answers wrongly.

    Raises:
        TypeError: the target is neither a URL nor an application.
        RuntimeError: an event loop runs in this thread.
        httpx.HTTPError: the server cannot be reached, or has not answered in time.
    """
    check_type("check(target)", target, (str, Callable), "a URL, or an ASGI application")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(
            "check() runs an event loop of its own. In a coroutine, write: await asyncio.to_thread(check, ...)"
        )
    is_url = isinstance(target, str)
    transport = None if is_url else httpx.ASGITransport(target, raise_app_exceptions=False)
    session = _Session(
        httpx.AsyncClient(transport=transport, timeout=timeout),
        method,
        target if is_url else f"http://server{path}",
        header,
        quoted,
        dict(headers or {}),
        effects,
    )
    return asyncio.run(session.judge(body, other, stranger, refused, failing, longest, dict(expect or {})))


class _Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def __str__(self) -> str:
        text = self.body.decode(errors="replace")
        return f"{self.status} {text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''}".rstrip()


class _Session(NamedTuple):
    """The requests of one report."""

    client: httpx.AsyncClient
    method: str
    url: str
    header: str
    quoted: bool
    headers: dict[str, str]
    effects: Callable[[], int] | None

    async def judge(
        self,
        body: object,
        other: object,
        stranger: Mapping[str, str] | None,
        refused: object,
        failing: object,
        longest: int | None,
        expect: dict[str, Choice],
    ) -> HttpReport:
        points: list[HttpPoint] = []
        key = str(uuid4())

        async def ask(name: str, holds: Callable[[_Answer], bool], ran: int, key: str | None, *given: Any) -> _Answer:
            found, times = await self.counted(self.send(key, *given))
            points.append(_point(name, holds(found[0]) and times in {ran, None}, found, times))
            return found[0]

        async with self.client:
            first = await ask("first", lambda found: found.is_success, 1, key, body)
            await ask("replay", lambda found: found == first, 0, key, body)
            await ask("missing", lambda found: found.status == 400, 0, None, body)
            await ask("reused", lambda found: found.status in {409, 422}, 0, key, other)
            one = str(uuid4())
            answers, times = await self.counted(*(self.send(one, body) for _ in range(_TOGETHER)))
            fit = len({found for found in answers if found.is_success}) == 1
            fit = fit and all(found.is_success or found.status == 409 for found in answers)
            points.append(_point("concurrent", fit and times in {1, None}, [*dict.fromkeys(answers)], times))
            if stranger is None:
                points.append(HttpPoint("scope", "unknown", "give stranger=, the headers of another caller"))
            else:
                found, times = await self.counted(self.send(key, body, stranger))
                own = found[0].is_success and found[0] != first and times in {1, None}
                point = _point("scope", own, found, times)
                points.append(point._replace(verdict="unknown") if found[0].status in {401, 403} else point)
            if longest is not None:
                await ask("longest", lambda found: found.is_success, 1, _long(longest), body)
                await ask("too long", lambda found: found.status // 100 == 4, 0, _long(longest + 1), body)
            for name, given, kind in (("refusal", refused, 4), ("failure", failing, 5)):
                points.append(await self.repeated(name, given, kind, expect.get(name)))
        return HttpReport(points)

    async def repeated(self, name: str, given: object, kind: int, expected: Choice | None) -> HttpPoint:
        """Send a request twice that the endpoint does not carry out, and tell what becomes of the second one."""
        if given is None:
            return HttpPoint(
                name, "unknown", f"give {'refused' if kind == 4 else 'failing'}=, a body that is answered with {kind}xx"
            )
        key = str(uuid4())
        first = await self.send(key, given)
        found, times = await self.counted(self.send(key, given))
        choice: Choice = "replayed" if (found[0] == first if times is None else times == 0) else "again"
        point = _point(name, first.status // 100 == kind and expected in {choice, None}, [first, *found], times)
        return point._replace(evidence=f"{choice}: {point.evidence}")

    async def send(self, key: str | None, given: Any, headers: Mapping[str, str] | None = None) -> _Answer:
        sent = {"Content-Type": "application/json", **(self.headers if headers is None else headers)}
        if key is not None and self.header.startswith("body."):
            given = {**given, self.header.removeprefix("body."): key}
        elif key is not None:
            sent[self.header] = f'"{key}"' if self.quoted else key
        found = await self.client.request(self.method, self.url, content=json.dumps(given), headers=sent)
        return _Answer(found.status_code, found.content)

    async def counted(self, *sending: Coroutine[Any, Any, _Answer]) -> tuple[list[_Answer], int | None]:
        """Send requests together. Return the answers, and how often the endpoint ran if that can be known."""
        before = self.effects() if self.effects else 0
        answers = await asyncio.gather(*sending)
        return answers, self.effects() - before if self.effects else None


def _point(name: str, holds: bool, answers: Sequence[_Answer], times: int | None) -> HttpPoint:
    ran = "" if times is None else f"; the endpoint ran {times} times"
    return HttpPoint(name, "holds" if holds else "fails", ", ".join(map(str, answers)) + ran)


def _long(length: int) -> str:
    return (uuid4().hex * (length // 32 + 1))[:length]

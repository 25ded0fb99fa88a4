"""A client that judges how an ASGI application treats ``Idempotency-Key``, point by point."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

import httpx

_TOGETHER = 8  # requests of one key at a time
_SHOWN = 60  # characters of an answer


class HttpPoint(NamedTuple):
    """A point of a report: "holds", "fails", or "unknown" if nothing told that; and what the server answered."""

    name: str
    verdict: str
    evidence: str


class HttpReport:
    """What a server does: ``points``, in order, or one by its name, as in ``report["replay"]``. Its text is a line for each."""

    def __init__(self, points: Sequence[HttpPoint]) -> None:
        self.points = points
        self.failed = [point for point in points if point.verdict == "fails"]

    def __getitem__(self, name: str) -> HttpPoint:
        return next(point for point in self.points if point.name == name)

    def __str__(self) -> str:
        return "\n".join(f"{point.verdict:8}{point.name:12}{point.evidence}" for point in self.points)


def check(app: Any, **given: Any) -> HttpReport:
    """Send the requests of a careless client to an application; see :class:`_Session` for the rest."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return asyncio.run(_Session(httpx.AsyncClient(transport=transport, base_url="http://server"), **given).judge())


class _Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def __str__(self) -> str:
        text = self.body.decode(errors="replace")
        return f"{self.status} {text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''}".rstrip()


@dataclass
class _Session:
    client: httpx.AsyncClient
    body: object  # of a request that succeeds, as JSON
    other: object  # of another one that succeeds
    header: str = "Idempotency-Key"  # or ``body.NAME`` for a key in the JSON body
    quoted: bool = True  # whether keys are sent in quotes, as the draft says
    headers: Mapping[str, str] = field(default_factory=dict)  # of each request
    stranger: Mapping[str, str] | None = None  # the headers of another caller
    refused: object = None  # a body that is answered with 4xx
    failing: object = None  # a body that is answered with 5xx
    effects: Callable[[], int] | None = None  # how many requests were begun; without it each effect's answer is its own
    longest: int | None = 255  # characters of a key
    expect: Mapping[str, str] = field(default_factory=dict)  # "replayed" or "again" for "refusal" and for "failure"
    points: list[HttpPoint] = field(default_factory=list)

    async def judge(self) -> HttpReport:
        key, one = str(uuid4()), str(uuid4())
        async with self.client:
            first = await self.ask("first", lambda found: found.is_success, 1, key, self.body)
            await self.ask("replay", lambda found: found == first, 0, key, self.body)
            await self.ask("missing", lambda found: found.status == 400, 0, None, self.body)
            await self.ask("reused", lambda found: found.status in {409, 422}, 0, key, self.other)
            answers, times = await self.counted(*(self.send(one, self.body) for _ in range(_TOGETHER)))
            fit = len({found for found in answers if found.is_success}) == 1
            fit = fit and all(found.is_success or found.status == 409 for found in answers)
            self.note("concurrent", fit and times in {1, None}, [*dict.fromkeys(answers)], times)
            if self.stranger is None:
                self.points.append(HttpPoint("scope", "unknown", "give stranger=, the headers of another caller"))
            else:
                own = lambda found: found.is_success and found != first
                found = await self.ask("scope", own, 1, key, self.body, self.stranger)
                if found.status in {401, 403}:
                    self.points[-1] = self.points[-1]._replace(verdict="unknown")
            if self.longest is not None:
                await self.ask("longest", lambda found: found.is_success, 1, _long(self.longest), self.body)
                refused = lambda found: found.status // 100 == 4
                await self.ask("too long", refused, 0, _long(self.longest + 1), self.body)
            await self.repeat("refusal", "refused", 4)
            await self.repeat("failure", "failing", 5)
        return HttpReport(self.points)

    def note(self, name: str, holds: bool, answers: Sequence[_Answer], times: int | None, said: str = "") -> None:
        ran = "" if times is None else f"; the endpoint ran {times} times"
        self.points.append(HttpPoint(name, "holds" if holds else "fails", said + ", ".join(map(str, answers)) + ran))

    async def ask(self, name: str, holds: Callable[[_Answer], bool], ran: int, key: str | None, *given: Any) -> _Answer:
        found, times = await self.counted(self.send(key, *given))
        self.note(name, holds(found[0]) and times in {ran, None}, found, times)
        return found[0]

    async def repeat(self, name: str, option: str, kind: int) -> None:
        """Send a request twice that the endpoint does not carry out, and tell what becomes of the second one."""
        given = getattr(self, option)
        if given is None:
            self.points.append(HttpPoint(name, "unknown", f"give {option}=, a body that is answered with {kind}xx"))
            return
        key = str(uuid4())
        first = await self.send(key, given)
        found, times = await self.counted(self.send(key, given))
        choice = "replayed" if (found[0] == first if times is None else times == 0) else "again"
        fit = first.status // 100 == kind and self.expect.get(name) in {choice, None}
        self.note(name, fit, [first, *found], times, f"{choice}: ")

    async def send(self, key: str | None, given: Any, headers: Mapping[str, str] | None = None) -> _Answer:
        sent = {"Content-Type": "application/json", **(self.headers if headers is None else headers)}
        if key is not None and self.header.startswith("body."):
            given = {**given, self.header.removeprefix("body."): key}
        elif key is not None:
            sent[self.header] = f'"{key}"' if self.quoted else key
        found = await self.client.post("/", content=json.dumps(given), headers=sent)
        return _Answer(found.status_code, found.content)

    async def counted(self, *sending: Coroutine[Any, Any, _Answer]) -> tuple[list[_Answer], int | None]:
        """Send requests together. Return the answers, and how often the endpoint ran if that can be known."""
        before = self.effects() if self.effects else 0
        answers = await asyncio.gather(*sending)
        return answers, self.effects() - before if self.effects else None


def _long(length: int) -> str:
    return (uuid4().hex * (length // 32 + 1))[:length]

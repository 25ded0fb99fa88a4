"""A client that judges how an ASGI application treats ``Idempotency-Key``, point by point."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

import httpx

_TOGETHER = 8  # requests of one key at a time
_SHOWN = 60  # characters of an answer


class HttpPoint(NamedTuple):
    verdict: str  # "holds" or "fails"
    evidence: str  # what the server answered


def check(app, **given):
    """Send the requests of a careless client to an application, and return its points by their names."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return asyncio.run(_Session(httpx.AsyncClient(transport=transport, base_url="http://server"), **given).judge())


class _Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def is_success(self):
        return 200 <= self.status < 300

    def __str__(self):
        return f"{self.status} {self.body.decode(errors='replace')[:_SHOWN]}".rstrip()


@dataclass
class _Session:
    client: httpx.AsyncClient
    body: object  # of a request that succeeds, as JSON
    other: object  # of another one that succeeds
    refused: object  # a body that is answered with 4xx
    failing: object  # a body that is answered with 5xx
    header: str  # or ``body.NAME`` for a key in the JSON body
    quoted: bool  # whether keys are sent in quotes, as the draft says
    headers: dict  # of each request
    stranger: dict  # the headers of another caller
    effects: object  # tells how many requests were begun
    longest: int  # characters of a key
    points: dict = field(default_factory=dict)

    async def judge(self):
        key, one = str(uuid4()), str(uuid4())
        async with self.client:
            first = await self.ask("first", lambda found: found.is_success, 1, key, self.body)
            await self.ask("replay", lambda found: found == first, 0, key, self.body)
            await self.ask("reused", lambda found: found.status in {409, 422}, 0, key, self.other)
            answers, times = await self.counted(*(self.send(one, self.body) for _ in range(_TOGETHER)))
            fit = len({found for found in answers if found.is_success}) == 1
            fit = fit and all(found.is_success or found.status == 409 for found in answers)
            self.note("concurrent", fit and times == 1, dict.fromkeys(answers), times)
            own = lambda found: found.is_success and found != first
            await self.ask("scope", own, 1, key, self.body, self.stranger)
            await self.ask("longest", lambda found: found.is_success, 1, "k" * self.longest, self.body)
            is_refused = lambda found: found.status // 100 == 4
            await self.ask("too long", is_refused, 0, "k" * (self.longest + 1), self.body)
            await self.repeat("refusal", self.refused, 4)
            await self.repeat("failure", self.failing, 5)
        return self.points

    def note(self, name, holds, answers, times, said=""):
        evidence = f"{said}{', '.join(map(str, answers))}; the endpoint ran {times} times"
        self.points[name] = HttpPoint("holds" if holds else "fails", evidence)

    async def ask(self, name, holds, ran, key, *given):
        (found,), times = await self.counted(self.send(key, *given))
        self.note(name, holds(found) and times == ran, [found], times)
        return found

    async def repeat(self, name, given, kind):
        """Send a request twice that the endpoint does not carry out, and tell what becomes of the second one."""
        key = str(uuid4())
        first = await self.send(key, given)
        (again,), times = await self.counted(self.send(key, given))
        self.note(name, first.status // 100 == kind, [first, again], times, "again: " if times else "replayed: ")

    async def send(self, key, given, headers=None):
        sent = {"Content-Type": "application/json", **(headers or self.headers)}
        if self.header.startswith("body."):
            given = {**given, self.header.removeprefix("body."): key}
        else:
            sent[self.header] = f'"{key}"' if self.quoted else key
        found = await self.client.post("/", content=json.dumps(given), headers=sent)
        return _Answer(found.status_code, found.content)

    async def counted(self, *sending):
        """Send requests together. Return the answers, and how often the endpoint ran."""
        before = self.effects()
        answers = await asyncio.gather(*sending)
        return answers, self.effects() - before

"""Handlers of steps that a test writes down as a generator, each in both forms."""

import asyncio
from dataclasses import dataclass

import pytest

from onceward import Claim


@dataclass
class Charge:
    id: str
    cents: int


class Smtp(Exception):
    pass


class Stopped(BaseException):
    """Ends an attempt as a crash does: the key stays claimed."""


class Script:
    """A handler whose parts a test gives: a generator function that yields ``(name, function, *arguments)`` and options."""

    def __init__(self, once, form, parts, **options):
        self.form, self.parts = form, parts
        options = {"key": "n", "name": "place"} | options
        if form == "called":

            @once(**options)
            def place(n, claim: Claim):
                try:
                    self._run(claim, claim.step).send(None)  # it awaits nothing
                except StopIteration as end:
                    return end.value

        else:

            @once(**options)
            async def place(n, claim: Claim):
                return await self._run(claim, claim.step_async)

        self.place = place

    def __call__(self, n=1):
        return self.place(n) if self.form == "called" else asyncio.run(self.place(n))

    async def _run(self, claim, make):
        parts = self.parts(claim)
        go_on, told = parts.send, None
        try:
            while True:
                given, options = go_on(told)
                try:
                    made = make(*given, **options)
                    go_on, told = parts.send, made if self.form == "called" else await made
                except (Exception, KeyboardInterrupt) as error:
                    go_on, told = parts.throw, error
        except StopIteration as end:
            return end.value


def step(*given, **options):
    return given, options


def only(*steps):
    """Return the parts of a handler that only makes these steps."""

    def parts(claim):
        made = None
        for one in steps:
            made = yield one
        return made

    return parts


def record(once, key="place:1"):
    return once.store.records[key]


def failing(*steps):
    """Return the parts of a handler that makes these steps and then fails."""

    def parts(claim):
        yield from only(*steps)(claim)
        raise Smtp

    return parts


def crashed(once, form, clock, parts, **options):
    """Run one attempt that ends as a crash does, and let its lease lapse."""
    with pytest.raises(Stopped):
        Script(once, form, parts, **options)()
    clock.advance(61)


def stopping(effects, *values):
    def function(*_):
        effects.append(values)
        raise Stopped

    return function

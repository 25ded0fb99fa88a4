"""An interrupt closes the steps at once, also if somebody keeps the exception."""

import asyncio

import pytest

from onceward.core.drivers import drive, drive_async
from tables import each


class Interrupt(BaseException):
    """What a signal handler raises."""


class Struck:
    """A store whose requests are interrupted."""

    def exchange(self, request):
        raise Interrupt

    async def exchange_async(self, request):
        raise Interrupt


@each("mode", ["sync", "async"])
def test_an_interrupt_closes_the_steps(mode):
    told = []

    def outer():
        yield from inner()

    def inner():
        try:
            yield "request"
        except Exception:
            told.append("seen")
        finally:
            told.append("closed")

    with pytest.raises(Interrupt) as kept:
        drive(outer(), Struck()) if mode == "sync" else asyncio.run(drive_async(outer(), Struck()))
    assert told == ["closed"]
    assert kept.value.__traceback__ is not None


@each("mode", ["sync", "async"])
def test_the_caller_sees_the_interrupt_also_if_the_steps_yield_once_more(mode):
    def steps():
        try:
            yield "request"
        finally:
            yield "give it back"  # a store of the user's can do that

    with pytest.raises(Interrupt):
        drive(steps(), Struck()) if mode == "sync" else asyncio.run(drive_async(steps(), Struck()))

"""An interrupt closes the steps at once, and reaches the caller whatever they do then."""

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
@each("more", [False, True])
def test_an_interrupt_closes_the_steps_also_if_they_yield_once_more(mode, more):
    told = []

    def steps():
        try:
            yield "request"
        except Exception:
            told.append("seen")
        finally:
            told.append("closed")
            if more:
                yield "give it back"  # a store of the user's can do that

    with pytest.raises(Interrupt) as kept:
        drive(steps(), Struck()) if mode == "sync" else asyncio.run(drive_async(steps(), Struck()))
    assert told == ["closed"]
    assert kept.value.__traceback__ is not None

"""What a stop does to work that somebody awaits."""

import asyncio

import pytest

from onceward.consumers.callers import unless_set


def run(work, *, stop_after=None):
    async def main():
        stop = asyncio.Event()
        if stop_after is not None:
            asyncio.get_running_loop().call_later(stop_after, stop.set)
        return await unless_set(stop, work)

    return asyncio.run(main())


def test_work_that_ends_first_gives_its_result_or_its_error():
    """A pipeline that cannot ask for the key of its hold must not go on as if it were free."""

    async def work():
        raise LookupError("the ledger")

    assert run(asyncio.sleep(0, 7)) == 7
    with pytest.raises(LookupError):
        run(work())


def test_a_stop_cancels_work_that_hangs():
    ends = []

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    assert run(work(), stop_after=0) is None
    assert ends == ["cancelled"]

"""Tasks that begin at once: but for that they are as asyncio's own."""

import asyncio
import gc
import io
from contextvars import ContextVar, copy_context

import pytest

from onceward.web.eager import begin

HERE = ContextVar("HERE", default="outside")


def run(main):
    messages = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: messages.append(context["message"]))
        return await asyncio.wait_for(main, 10)

    try:
        return asyncio.run(watched())
    finally:
        gc.collect()  # a task that nobody asked how it ended says so when it is collected
        assert messages == []


def begun(coroutine):
    return begin(coroutine, copy_context())


def test_what_never_waits_is_through_at_once():
    async def main():
        steps = []

        async def body():
            steps.append("taken")

        assert begun(body()) is None
        assert steps == ["taken"]
        with pytest.raises(ZeroDivisionError):
            begun(failing(waits=0))

    run(main())


async def failing(waits):
    for _ in range(waits):
        await asyncio.sleep(0)
    raise ZeroDivisionError


def test_what_waits_goes_on_in_the_task_and_the_context_that_it_began_in():
    async def main():
        tasks, contexts = [], []

        def note():
            tasks.append(asyncio.current_task())
            contexts.append(HERE.get())

        async def body():
            note()
            token = HERE.set("inside")
            await asyncio.sleep(0)
            note()
            await asyncio.sleep(0)
            HERE.reset(token)
            note()
            return "done"

        task = begun(body())
        assert task in asyncio.all_tasks()
        assert await task == "done"
        assert tasks == [task] * 3
        assert contexts == ["outside", "inside", "outside"]

    run(main())


@pytest.mark.parametrize("waits", [0, 1])
def test_who_begins_it_is_the_current_task_again_whatever_comes_of_it(waits):
    async def main():
        me = asyncio.current_task()

        async def inner():
            await asyncio.sleep(0)

        async def outer():
            mine = asyncio.current_task()
            assert mine is not me
            await begun(inner())
            assert asyncio.current_task() is mine

        task = begun(outer())
        assert asyncio.current_task() is me
        await task
        with pytest.raises(ZeroDivisionError):
            await (begun(failing(waits)) or asyncio.sleep(0))
        assert asyncio.current_task() is me

    run(main())


def test_several_may_wait_for_one_and_the_same_future():
    async def main():
        shared = asyncio.get_running_loop().create_future()

        async def body():
            return await shared

        tasks = [begun(body()), asyncio.create_task(body()), begun(body())]
        await asyncio.sleep(0)
        tasks.append(begun(body()))
        shared.set_result("seen")
        tasks.append(asyncio.create_task(body()))
        assert await asyncio.gather(*tasks) == ["seen"] * 5

    run(main())


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_what_it_waits_for_may_be_there_before_the_loops_next_turn(error):
    async def main():
        future = asyncio.get_running_loop().create_future()

        async def body():
            return await future

        task = begun(body())
        if error is None:
            future.set_result("there")
            assert await task == "there"
        else:
            future.set_exception(error)
            with pytest.raises(ZeroDivisionError):
                await task

    run(main())


def test_those_who_look_at_tasks_see_where_it_waits():
    async def main():
        async def waits_here():
            await asyncio.sleep(0.01)

        task = begun(waits_here())
        for _ in range(3):
            stack = io.StringIO()
            task.print_stack(file=stack)
            assert "await asyncio.sleep(0.01)" in stack.getvalue()
            assert "waits_here" in repr(task)
            await asyncio.sleep(0)
        await task

    run(main())


def test_a_loop_may_end_before_it_is_through():
    ends = []

    async def body():
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    async def main():
        assert begun(body()) is not None  # and nobody waits for it

    run(main())
    assert ends == ["cancelled"]


# --- cancelled, they do as any task does -----------------------------------------------------------------------------


async def in_an_event(seen):
    await asyncio.Event().wait()


async def in_a_pause(seen):
    await asyncio.sleep(0)
    await asyncio.Event().wait()


async def in_a_child(seen):
    await asyncio.create_task(noted(seen))


async def in_a_group(seen):
    async with asyncio.TaskGroup() as group:
        group.create_task(noted(seen))


async def in_many(seen):
    await asyncio.gather(noted(seen), noted(seen))


async def in_a_shield(seen):
    await asyncio.shield(noted(seen, for_ever=False))


async def in_a_timeout(seen):
    async with asyncio.timeout(10):
        await asyncio.Event().wait()


async def in_what_swallows_it(seen):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        seen.append(error.args)
    await asyncio.sleep(0)
    return asyncio.current_task().cancelling()


async def in_a_timeout_of_no_time(seen):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    seen.append(asyncio.current_task().cancelling())
    await asyncio.Event().wait()


async def by_itself_as_it_waits(seen):
    asyncio.current_task().cancel("by itself")
    await asyncio.Event().wait()


async def by_itself_as_it_pauses(seen):
    asyncio.current_task().cancel("by itself")
    await asyncio.sleep(0)


async def by_itself_at_its_end(seen):
    asyncio.current_task().cancel("by itself")


async def noted(seen, *, for_ever=True):
    try:
        await (asyncio.Event().wait() if for_ever else asyncio.sleep(0))
    except asyncio.CancelledError as error:
        seen.append(error.args)
        raise


async def outcome(start, body, turns):
    """What comes of ``body``, and what it sees, when it is cancelled so many turns of the loop after its first step."""
    seen = []

    async def watched():
        try:
            return await body(seen)
        except asyncio.CancelledError as error:
            seen.append(error.args)
            raise

    try:
        task = await start(watched())
        for _ in range(turns):
            await asyncio.sleep(0)
        if task is not None:
            task.cancel("by another")
            await asyncio.wait((task,))
            return seen, task.cancelling(), task.result()
    except asyncio.CancelledError:
        return seen, "cancelled"
    return seen, None


async def at_once(coroutine):
    return begun(coroutine)


async def as_ever(coroutine):
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    if not task.done():
        return task
    task.result()
    return None


def same(body, turns):
    async def main():
        return await outcome(at_once, body, turns), await outcome(as_ever, body, turns)

    begun_at_once, begun_as_ever = run(main())
    return begun_at_once == begun_as_ever


@pytest.mark.parametrize("turns", [0, 5])
@pytest.mark.parametrize(
    "body", [in_an_event, in_a_pause, in_a_child, in_a_group, in_many, in_a_shield, in_a_timeout, in_what_swallows_it]
)
def test_a_cancellation_is_met_as_by_any_task(body, turns):
    assert same(body, turns)


@pytest.mark.parametrize(
    "body", [by_itself_as_it_waits, by_itself_as_it_pauses, by_itself_at_its_end, in_a_timeout_of_no_time]
)
def test_a_cancellation_by_itself_in_the_first_step_is_met_as_by_any_task(body):
    assert same(body, turns=5)

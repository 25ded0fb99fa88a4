"""Batches of a lane whose answer is lost, in a ledger behind a proxy."""

import asyncio
from collections import Counter

from onceward import Once

TASKS = 20


def lose_the_answer_of(what, url, proxy, sleep):
    """Let tasks wait for the only lane, and lose the answer to their claims or ends. Return how often each body ran."""
    once, ran = Once(url, name="n"), Counter()

    def lose():
        proxy.plan = "drop"

    async def body(number):
        ran[number] += 1
        if what == "ends" and len(ran) == TASKS // 2:
            lose()
        return number

    async def main():
        await once.run_async("warm", asyncio.sleep, 0)
        keeping = asyncio.ensure_future(once.store.exchange_async(sleep))
        await asyncio.sleep(0.05)
        if what == "claims":
            lose()
        tasks = [once.run_async(f"COMMIT {number}", body, number) for number in range(TASKS)]
        results = await asyncio.wait_for(asyncio.gather(*tasks), 30)
        await keeping
        assert results == list(range(TASKS))

    asyncio.run(main())
    assert proxy.commits == 1
    assert {record.status for record, _ in once.ledger.records()} == {"COMPLETED"}
    once.close()
    return ran

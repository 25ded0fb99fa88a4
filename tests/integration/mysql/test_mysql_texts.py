"""Records as one packed column: every text comes back, and one that is too long is told."""

import asyncio
import sys

import pytest

from onceward import StoreError


@pytest.mark.parametrize("awaited", [False, True])
def test_every_character_comes_back(once, awaited):
    once = once.using(name="n")
    texts = ["".join(map(chr, range(start, start + 0x800))) for start in range(0, 0x11000, 0x800) if start != 0xD800]
    texts += ["".join(map(chr, range(0x10F800, sys.maxunicode + 1))), '"', "\\", "\\u0041", "null", "[1]", '{"a": "b"}']

    def handler(at):
        return texts[at]

    async def handler_async(at):
        return texts[at]

    for at in [*range(len(texts))] * 2:
        got = asyncio.run(once.run_async(str(at), handler_async, at)) if awaited else once.run(str(at), handler, at)
        assert got == texts[at]


def test_a_record_beyond_max_allowed_packet_is_told(once, sql):
    once.using(name="n").run("k", lambda: "done")
    sql("""UPDATE onceward SET result = REPEAT('"', 9000000)""")  # which is twice as long within a packed row
    with pytest.raises(StoreError, match="max_allowed_packet"):
        once.using(name="n").run("k", pytest.fail, "it ran again")

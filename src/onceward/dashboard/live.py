"""Counts as they change: server-sent events, for as long as a browser listens."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from onceward.dashboard.asking import Board, board_of
from onceward.dashboard.sampler import EVERY
from onceward.errors import StoreError

_LONGEST: Final = 600.0  # seconds of one stream; the browser then asks again, and must still be signed in
_PAUSE: Final = 15.0  # seconds without news after which a comment shows that the stream lives


async def live(request: Request) -> Response:
    """Send the counts, and each change of them."""
    if request.method == "HEAD":  # nobody reads the stream
        return Response(media_type="text/event-stream")
    return StreamingResponse(_events(board_of(request)), media_type="text/event-stream")


async def _events(board: Board) -> AsyncIterator[bytes]:
    last, quiet = b"", 0.0
    yield b"retry: 3000\n\n"
    for _ in range(int(_LONGEST / EVERY)):
        news = await run_in_threadpool(_news, board)
        quiet += EVERY
        if news != last:
            last, quiet = news, 0.0
            yield news
        elif quiet >= _PAUSE:
            quiet = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(EVERY)


def _news(board: Board) -> bytes:
    try:
        survey = board.sampler.latest()
    except StoreError as error:
        return _event("away", {"error": str(error)})
    rate = board.sampler.rate()
    told = {
        "counts": survey.counts,
        "least": sorted(survey.least),
        "total": survey.total,
        "exact": survey.exact,
        "rate": None if rate is None else round(rate, 1),
    }
    return _event("counts", told)


def _event(kind: str, told: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(told) + b"\n\n"

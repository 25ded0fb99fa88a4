"""What onceward sends to MariaDB, recorded, and sent again by the raw drivers with other keys.

As a careful user writes it: texts are parameters, and a completion has the owner and the fence of its own claim, so that it is
written. Each reply is read.
"""

import json
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from onceward import Once
from onceward.stores import open_store
from onceward.stores.mysql.lane import MysqlLane

MARK = "k" * 20  # stands for a key in what was recorded
CASES = ("first call", "duplicate", "batch", "batch again")
_TEXT = re.compile(r"'([^'\\]*)'(?=[,) ])")
_OURS = {"1970-01-01", "fence"}  # texts of the statements themselves
_FENCE = 3  # places after the key
Rows = tuple[tuple[str, ...], ...]
Asking = Generator[tuple[str, list[str]], Rows, None]


class Heard(NamedTuple):
    """One request: its statements, and the fences of the records that were the reply, by their keys."""

    texts: list[str]
    fences: dict[str, int]


Tape = dict[str, list[Heard]]


@contextmanager
def listening() -> Iterator[list[Heard]]:
    """Note what is sent in here."""
    heard: list[Heard] = []
    fetch = MysqlLane.fetch

    def noting(lane: MysqlLane, texts: list[str]) -> Rows:
        rows = fetch(lane, texts)
        heard.append(Heard(texts, fences(rows)))
        return rows

    MysqlLane.fetch = noting
    try:
        yield heard
    finally:
        MysqlLane.fetch = fetch


def recorded(url: str, handler: Callable[[str], object], batch: int) -> Tape:
    """Return what onceward sends in each case, with keys that begin with MARK."""
    store = open_store(url)
    once, tape = Once(store, name="bench"), {}
    once.run("warm", handler, "warm")
    of_batch = once.batch(handler, key=lambda key: key, name="bench")
    keys = keys_of(MARK, batch)
    acts = (lambda: once.run(keys[0], handler, keys[0]),) * 2 + (lambda: of_batch.run(keys[1:]),) * 2
    for case, act in zip(CASES, acts, strict=True):
        with listening() as tape[case]:
            act()
    store.close()
    return tape


def keys_of(start: str, count: int) -> list[str]:
    """Return keys of one length."""
    return [f"{start}{number:05}" for number in range(count + 1)]


def fences(rows: Rows) -> dict[str, int]:
    """Return the fences of the records in the rows of a reply, by their keys."""
    found: dict[str, int] = {}
    for row in rows:
        values = json.loads(row[0]) if isinstance(row[0], str) and row[0].startswith("[") else []
        at = next((at for at, value in enumerate(values) if isinstance(value, str)), None)  # the key comes first
        if at is not None:
            found[values[at]] = values[at + _FENCE]
    return found


def steps(tape: Tape, case: str, start: str, calls: int) -> Asking:
    """Yield the statements of a turn with their values, and take their rows."""
    if "batch" in case:
        yield from _again(tape[case], MARK, start)
        return
    for key in keys_of(start, calls)[1:]:
        yield from _again(tape[case], f"{MARK}00000", key)


def _again(heard: list[Heard], mark: str, start: str) -> Asking:
    own: dict[str, tuple[int, int]] = {}  # fences, recorded and now
    for texts, of_records in heard:
        rows: Rows = ()
        for text in texts:
            parts = text.replace(mark, start).split(" UNION ALL ")
            rows += yield _parameters(" UNION ALL ".join(_with(part, own) for part in parts))
        now = fences(rows)
        for key, fence in of_records.items():
            renamed = key.replace(mark, start)
            own[renamed] = fence, now[renamed]


def _with(text: str, own: dict[str, tuple[int, int]]) -> str:
    """Put the fence that the key has now in the place of the recorded one."""
    for key in _keys_in(text):
        if key in own:
            old, new = own[key]
            text = text.replace(str(old), str(new))
    return text


def _keys_in(text: str) -> Iterator[str]:
    yield from dict.fromkeys(_TEXT.findall(text))


def _parameters(text: str) -> tuple[str, list[str]]:
    values: list[str] = []

    def parameter(found: re.Match[str]) -> str:
        if found[1] in _OURS:
            return found[0]
        values.append(found[1])
        return "%s"

    return _TEXT.sub(parameter, text.replace("%", "%%")), values

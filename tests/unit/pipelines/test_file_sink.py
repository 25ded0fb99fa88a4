"""A file as a sink has each line once, whatever crashes between two writes; messages of one object of S3 have ends of their own."""

import asyncio
import contextlib
import sqlite3
import threading
import time
import uuid

import pytest

from onceward import Once
from onceward.pipelines.sinks.lines import Appender, KeyedLine, _fences
from onceward.pipelines.sinks.s3 import ObjectGrouping, _Member
from waiting import until

KEYS = [str(uuid.UUID(int=number)) for number in range(50)]


def line(number):
    return f"line {number}\n".encode()


def keyed(number, fence=7, first=0):
    return KeyedLine(KEYS[number], line(number), fence, first)


def append(path, *numbers):
    Appender(path).append([keyed(number) for number in numbers])


def test_a_claim_that_was_taken_over_appends_no_line_after_its_successor(tmp_path):
    appender = Appender(tmp_path / "out")
    zombie = threading.Thread(target=appender.add, args=(keyed(1, 7, 7),))
    with appender._lock:
        zombie.start()
        until(lambda: appender._waiting)
        appender.add(keyed(1, 8))
    zombie.join()
    assert (tmp_path / "out").read_bytes() == line(1)


def test_a_writer_begins_anew_after_file_and_journal_were_deleted(tmp_path):
    path, running = tmp_path / "out", Appender(tmp_path / "out")
    running.append([keyed(1)])
    path.unlink()
    (tmp_path / "out.onceward").unlink()
    append(path, 2)  # another writer was faster
    running.append([keyed(1), keyed(2), keyed(5)])
    assert path.read_bytes() == line(2) + line(1) + line(5)


def test_what_was_in_the_file_before_stays_a_line_of_its_own(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    append(path, 1)
    assert path.read_bytes() == b"old\n" + line(1)


def states_of_a_crash():
    """Return the journal and the file at each byte of a second batch: entries first, then the lines, then the last word."""
    entries = f"{KEYS[2]} {len(line(1))} 7\n{KEYS[3]} {len(line(1) + line(2))} 7\n".encode()
    lines, word = line(2) + line(3), b"written\n"
    yield from ((entries[:n], b"") for n in range(len(entries)))
    yield from ((entries, lines[:n]) for n in range(len(lines) + 1))
    yield from ((entries + word[:n], lines) for n in range(1, len(word)))


@pytest.mark.parametrize(("journal", "lines"), list(states_of_a_crash())[::3])
def test_a_crash_at_any_byte_leaves_no_line_twice(tmp_path, journal, lines):
    path = tmp_path / "out"
    append(path, 1)
    with path.open("ab") as file, path.with_name("out.onceward").open("ab") as log:
        file.write(lines)
        log.write(journal)
    append(path, 2, 3)
    append(path, 4)
    assert path.read_bytes() == line(1) + line(2) + line(3) + line(4)


def test_many_writers_share_a_file(tmp_path):
    path = tmp_path / "out"

    def write():
        appender = Appender(path)
        for number in range(len(KEYS)):
            appender.append([keyed(number)])

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(map(line, range(len(KEYS))))


def test_a_first_attempt_appends_its_line_again_after_the_record_of_an_older_one_is_forgotten(tmp_path):
    path = tmp_path / "out"
    append(path, 1)
    for _ in range(2):
        Appender(path).append([keyed(1, 8, 8)])  # twice by one claim, after an error
    Appender(path).append([keyed(1, 9, 8)])  # the attempt after it
    assert path.read_bytes() == line(1) * 2


def test_a_later_attempt_takes_no_line_of_a_record_that_is_forgotten_for_its_own(pipelines):
    failing = "def pay(order):\n    made.append(1)\n    assert not 1 < len(made) < 9, 'a long reason ' * 20\n"
    pipelines.functions(failing)  # the history of so many failures lacks the first
    pipelines.write("steps: [{call: {function: SHOP:pay}}]\nsinks: [{file: {path: out}}]\n")
    assert pipelines.handle({"id": 1}).ok
    with contextlib.closing(Once(pipelines.ledger)) as once:
        once.ledger.clear("orders:1")
    assert [pipelines.handle({"id": 1}).ok for _ in range(8)] == [False] * 7 + [True]
    assert pipelines.folder.joinpath("out").read_text() == '{"id":1}\n' * 2


def long_attempts(once):
    """Yield an attempt after the other; each fails, and after some the history lacks the first one."""
    for _ in range(12):
        claim = once.acquire("k")
        yield claim
        claim.release("a long reason " * 40)


def test_attempts_after_an_unpark_take_the_line_of_one_before_for_their_own(tmp_path):
    once, path = Once("memory:", name="n"), tmp_path / "out"
    first = once.acquire("k")
    Appender(path).append([KeyedLine(KEYS[0], b"a\n", *_fences(first))])
    first.park("a long reason " * 40)
    once.ledger.unpark("n:k")
    time.sleep(0.01)  # a history has milliseconds
    for claim in long_attempts(once):
        Appender(path).append([KeyedLine(KEYS[0], b"a\n", *_fences(claim))])
    assert path.read_bytes() == b"a\n"


@pytest.mark.parametrize("failures", [0, 6])
def test_attempts_take_no_line_of_a_record_that_had_expired_for_their_own(tmp_path, failures):
    once, path = Once(f"sqlite:///{tmp_path}/ledger.db", name="n"), tmp_path / "out"
    first = once.acquire("k")
    Appender(path).append([KeyedLine(KEYS[0], b"a\n", *_fences(first))])
    first.complete(1)
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        connection.execute("UPDATE onceward SET expires_at = 1.0, lease_until = 1.0")
    for number, claim in enumerate(long_attempts(once)):
        if number >= failures:
            Appender(path).append([KeyedLine(KEYS[0], b"b\n", *_fences(claim))])
    assert path.read_bytes() == b"a\nb\n"
    once.close()


def test_a_text_is_one_line_whatever_is_in_it(pipelines):
    texts = ["plain", 'a\n{"forged":1}', "b\rc", "é\u2028x", ""]
    pipelines.lines(*({"id": number, "text": text} for number, text in enumerate(texts)))
    pipelines.write("steps: [{map: {to: message.text}}]\nsinks: [{file: {path: out}}]\nconcurrency: 1\n")
    assert {one.status for one in pipelines.run()} == {"done"}
    written = pipelines.folder.joinpath("out").read_bytes().decode().split("\n")[:-1]
    assert written == ["plain", '"a\\n{\\"forged\\":1}"', '"b\\rc"', "é\u2028x", ""]


def test_a_message_that_is_cancelled_cancels_no_other_of_its_object():
    async def no_write(_name, _content): ...

    async def joined():
        grouping = ObjectGrouping(no_write, str, count=3, size=1_000_000, age=3600)
        members = [_Member(grouping, f"{number} 1", b"{}\n") for number in range(3)]
        tasks = [asyncio.create_task(member.joined()) for member in members[:2]]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        tasks.append(asyncio.create_task(members[2].joined()))
        return await asyncio.gather(*tasks, return_exceptions=True)

    cancelled, one, other = asyncio.run(asyncio.wait_for(joined(), 60))
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(one, str)
    assert one == other

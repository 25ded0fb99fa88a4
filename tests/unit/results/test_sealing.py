"""Results and errors that are sealed before they leave the process; and keys and classes of a script, wherever it is imported."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import boto3
import pytest
from cryptography.fernet import Fernet

from fixtures import closing_fixture
from onceward import Completed, Once, Parked, ResultUnavailable
from onceward.core.record import COMPLETED, PARKED, RELEASED
from onceward.errors import ResultWarning
from places import SOURCES
from printed.pages import section
from tables import each
from web.asgi import records
from web.calls import AsgiIdempotency, call, post

CARD = "4242-4242-4242-4242"
fernet = Fernet(Fernet.generate_key())
FERNET = (fernet.encrypt, fernet.decrypt)
flip = lambda data: bytes(255 - byte for byte in data)
RAW = (lambda plain: b"\xff" + flip(plain), lambda token: flip(token[1:]))
SEALS = pytest.mark.parametrize("seal", [FERNET, RAW], ids=["text", "bytes"])


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


once = closing_fixture(Once, "url")


@pytest.fixture
def sealing(url):
    """Nothing is plain in the end, in the file itself, too: what was written and overwritten counts."""
    made = Once(url, seal=FERNET, final=(ArithmeticError,))
    yield made
    assert records(made)
    made.close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert CARD not in "".join(file.iterdump())


def fail(error):
    raise error


@SEALS
@pytest.mark.parametrize("value", [{"card": CARD, "amount": 5}, None, (CARD, b"x"), "ü\ud800"])
def test_a_result_is_sealed_in_the_ledger_and_replayed_as_it_was(sealing, seal, value):
    runs = []

    @sealing(key="number", seal=seal)
    def pay(number):
        runs.append(number)
        return value

    assert pay(1) == pay(1) == value
    assert type(pay(1)) is type(value)
    assert (len(runs), records(sealing)[0].status) == (1, COMPLETED)
    assert records(sealing)[0].result.startswith('{"$onceward":1,"sealed')


def test_a_final_exception_and_its_text_are_sealed_and_raised_again(sealing):
    for _ in range(2):
        with pytest.raises(ArithmeticError, match=f"^no money on {CARD}$"):
            sealing.run("k", fail, ArithmeticError(f"no money on {CARD}"))
    (record,) = records(sealing)
    assert record.error.startswith("ArithmeticError: sealed")


def test_the_text_of_an_error_is_sealed_and_told_to_who_may_open_it(sealing, once):
    error = LookupError(f"no money on {CARD}")
    with pytest.raises(LookupError):
        sealing.using(max_attempts=1).run("k", fail, error)
    for reader, told in ((sealing, f"LookupError: no money on {CARD}"), (once, "LookupError: sealed.*")):
        with pytest.raises(Parked) as parked:
            reader.using(max_attempts=1).run("k", fail, error)
        assert re.fullmatch(told, parked.value.last_error)


def test_what_a_claim_is_given_back_or_parked_with_is_sealed(sealing):
    sealing.acquire("a").release(f"busy: {CARD}")
    sealing.acquire("b").park(f"card {CARD} is stolen")
    assert [record.status for record in records(sealing)] == [RELEASED, PARKED]
    with pytest.raises(Parked) as told:
        sealing.acquire("b")
    assert told.value.last_error == f"card {CARD} is stolen"


def broken(data):
    raise ValueError(f"cannot seal {data!r}")


@pytest.mark.parametrize("seal", [broken, lambda data: data.decode(), lambda data: None])
def test_what_cannot_be_sealed_completes_without_result_never_in_the_open(sealing, seal):
    sealing = sealing.using(seal=(seal, bytes))
    with pytest.warns(ResultWarning, match="seal"):
        assert sealing.run("k", str, CARD) == CARD
    with pytest.raises(ResultUnavailable):
        sealing.run("k", str, CARD)
    assert records(sealing)[0].result is None
    for error in (ArithmeticError, ResultUnavailable):
        with pytest.raises(error):
            sealing.run("final", fail, ArithmeticError(CARD))
    with pytest.raises(LookupError):
        sealing.run("failed", fail, LookupError(CARD))
    sealing.acquire("released").release(CARD)


@pytest.mark.parametrize(
    ("opening", "says"),
    [
        ({}, "give the guard the seal="),
        ({"seal": (bytes, Fernet(Fernet.generate_key()).decrypt)}, "InvalidToken"),
        ({"seal": (bytes, lambda token: None)}, "cannot be opened"),
    ],
)
def test_what_cannot_be_opened_is_unavailable_and_does_not_run_again(once, opening, says):
    once = once.using(name="n")
    once.using(seal=FERNET).run("k", str, CARD)
    with pytest.raises(ResultUnavailable, match=says):
        once.using(**opening).run("k", pytest.fail)


def test_what_was_recorded_before_there_was_a_seal_is_replayed(once):
    once.run("k", str, CARD)
    assert once.using(seal=FERNET).run("k", str) == CARD


async def later(data): ...


@each(
    ("seal", "told"),
    [
        ((FERNET[0],), "give a pair of functions, as in seal="),
        ((1, 2), "give a pair of functions, as in seal="),
        (b"SECRET", "seal= is a bytes"),
        ((later, bytes), "nobody would await it"),
    ],
)
def test_a_seal_that_is_no_pair_of_functions_is_refused(seal, told):
    with pytest.raises(TypeError, match=told) as refused:
        Once("memory:", seal=seal)
    assert "SECRET" not in str(refused.value)


def test_batches_are_sealed(sealing):
    def pay(number):
        return CARD if number == 1 else fail({2: LookupError, 3: ArithmeticError}[number](CARD))

    batch = sealing.batch(pay, key="number")
    batch.run([1, 2, 3])
    again = batch.run([1, 3])
    assert [again[0].value, str(again[1].error)] == [CARD, CARD]


def test_a_result_that_commits_with_its_effect_is_sealed(sealing, url):
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        with sealing.transaction("a", connection) as transaction:
            transaction.result = CARD
        with pytest.raises(Completed) as told, sealing.transaction("a", connection):
            pass
        with pytest.raises(LookupError), sealing.transaction("b", connection):
            raise LookupError(CARD)
    assert told.value.result == CARD


def test_answers_over_http_are_sealed(sealing):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": CARD.encode()})

    guarded = AsgiIdempotency(app, sealing, name="asgi")
    first, second = call(guarded, post("/a", "k"), post("/a", "k"))
    assert (first.text, second.text, second.headers["idempotent-replayed"]) == (CARD, CARD, "true")


EXAMPLES = re.findall(r"```python\n(.*?)```", section("docs/reference/records.md", "Encrypt results"), re.DOTALL)


def kms(name):
    """A client as boto3's: it hands out data keys, and opens them."""
    made = lambda key: {"CiphertextBlob": b"\x00\xff" + key[::-1], "Plaintext": key}
    opened = lambda KeyId, CiphertextBlob: {"Plaintext": CiphertextBlob[2:][::-1]}
    return SimpleNamespace(generate_data_key=lambda KeyId, KeySpec: made(os.urandom(32)), decrypt=opened)


def test_the_documented_seals_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEDGER_KEY", Fernet.generate_key().decode())
    monkeypatch.setattr(boto3, "client", kms)
    for number, replayed in enumerate(("4242424242424242", "4242424242424242", "************4242")):
        space = {"__name__": "example"}
        exec(EXAMPLES[number].replace("dynamodb://orders-ledger?region=eu-west-1", "memory:"), space)
        paying = space["once"].using(name=f"example-{number}")
        told = [paying.run(1, str, "paid with 4242424242424242") for _ in range(2)]
        assert told == ["paid with 4242424242424242", f"paid with {replayed}"]
        assert not [record for record in records(paying) if "4242424242424242" in record.result]
        paying.close()
    assert capsys.readouterr().out == "{'card': '4242', 'paid': True}\n" * 2


PROGRAM = """
import enum, sys
from dataclasses import dataclass
from onceward import Once

once = Once("sqlite:///ledger.db", final=(ValueError,))

class Colour(enum.Enum):
    RED = 1

class Declined(ValueError):
    pass

@dataclass
class Receipt:
    order: int
    colour: Colour

def charge(order):
    with open("ran", "a") as ran:
        print(order, file=ran)
    if order == 2:
        raise Declined("no")
    return [Receipt(order, Colour.RED)]

def outcome(order):
    try:
        [receipt] = once.run(order, charge, order)
        return type(receipt) is Receipt and receipt == Receipt(order, Colour.RED)
    except ValueError as error:
        return type(error) is Declined

if __name__ == "__main__":
    print(outcome(1), outcome(2))
"""


def run_program(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


FINGERPRINTED = """
import dataclasses
from onceward.keys.ledger_keys import fingerprint_of

@dataclasses.dataclass
class Order:
    number: int

if __name__ == "__main__":
    first = fingerprint_of(Order(1))
    import worker  # as a function does that says `from app import ...`
    assert fingerprint_of(Order(1)) == first, "the same input is another one since"
    print(first)
"""


def test_a_scripts_inputs_have_one_fingerprint_whoever_imports_the_script(tmp_path):
    (tmp_path / "worker.py").write_text(FINGERPRINTED)
    digest = "6a43b585ed4d502d5c8083015900739f5a53c5bb445aab32b1864f694e46bd0a"
    assert run_program(tmp_path, "worker.py") == [digest], "records of earlier versions have this one"


IMPORTED = "import {0} as program; print(program.outcome(1), program.outcome(2))"


@pytest.mark.slow
@pytest.mark.parametrize("script_first", [True, False])
def test_keys_and_classes_of_a_script_are_its_own_in_script_and_where_it_is_imported(tmp_path, script_first):
    (tmp_path / "shop").mkdir()
    for path in ("worker.py", "shop/__main__.py"):
        (tmp_path / path).write_text(PROGRAM)
    for arguments, module in ((["worker.py"], "worker"), (["-m", "shop"], "shop.__main__")):
        ways = [arguments, ["-c", IMPORTED.format(module)]]
        for way in ways if script_first else ways[::-1]:
            assert run_program(tmp_path, *way) == ["True", "True"]
    assert (tmp_path / "ran").read_text() == "1\n2\n" * 3, "one each for worker, shop and shop.__main__"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-worker.py", "json.py"])
def test_a_class_of_script_that_cannot_be_imported_replays_in_that_script(tmp_path, name):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / name).write_text("import sys; sys.path.pop(0)\n" + PROGRAM)
    for _ in range(2):
        assert run_program(tmp_path, f"scripts/{name}") == ["True", "True"]
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        (text,) = connection.execute("SELECT result FROM onceward WHERE key LIKE '%.charge:1'").fetchone()
    assert '"__main__:Receipt"' in text  # an earlier version can read it


@pytest.mark.slow
def test_a_record_of_a_script_by_earlier_version_replays_in_that_script(tmp_path):
    (tmp_path / "worker.py").write_text(PROGRAM)
    assert run_program(tmp_path, "worker.py") == ["True", "True"]
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        changed = connection.execute("UPDATE onceward SET result = replace(result, 'worker:', '__main__:')").rowcount
    connection.close()
    assert changed >= 2
    assert run_program(tmp_path, "worker.py") == ["True", "True"]

"""The table of the articles, with what its programs have written, and with what they read of ours."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Busy, Once, Parked, ResultUnavailable, StoreError
from onceward.stores.dynamodb.blobs import Blobs
from onceward.stores.dynamodb.layouts import Plain, preset
from onceward.stores.dynamodb.store import DynamoStore
from servers.needs import numbers
from web.plain_wire import plain_wires

NUMBERS = numbers()
ALREADY = AssertionError("its handler ran although it was done already")


@pytest.fixture
def table(dynoxide):
    return dynoxide.table(f"plain-{next(NUMBERS)}", {"id": "S"})


@pytest.fixture
def open_once(proxy, table):
    made = []

    def opened(ahead=0.0, names=None, **options):
        if ahead:
            proxy.date = lambda: time.time() + ahead
        layout = preset("plain", "id={orders:key}", None, names)
        made.append(Once(DynamoStore(table, plain_wires(proxy.url), layout=layout, **options), name="orders"))
        return made[-1]

    yield opened
    for once in made:
        once.close()


@pytest.fixture
def row(dynoxide, table):
    """Writes a row as the old program did."""

    def written(key, status, expires_in=3600, **more):
        item = {"id": {"S": key}, "status": {"S": status}, **more}
        if expires_in is not None:
            item["expiry"] = {"N": str(int(time.time()) + expires_in)}
        dynoxide.ask("PutItem", TableName=table, Item=item)

    return written


@pytest.fixture
def read(dynoxide, table):
    """Reads a row as the old program does."""
    return lambda key: dynoxide.ask("GetItem", TableName=table, Key={"id": {"S": key}})["Item"]


def again():
    raise ALREADY


# --- rows of the old program --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "result"),
    [
        ({"S": '{"receipt": 7}'}, {"receipt": 7}),
        ({"S": "paid"}, "paid"),
        ({"S": ""}, ""),
        ({"M": {"a": {"L": [{"N": "1"}, {"N": "-2.5"}, {"BOOL": True}, {"NULL": True}, {"S": "x"}]}}}, {"a": [1, -2.5, True, None, "x"]}),
        ({"N": "42"}, 42),
        ({"NULL": True}, None),
    ],
)  # fmt: skip
def test_a_completed_row_is_replayed(open_once, row, stored, result):
    row("order-42", "COMPLETED", result=stored)
    assert open_once().run("order-42", again) == result


def test_a_result_that_json_cannot_hold_is_not_replayed_and_nothing_runs(open_once, row):
    row("order-42", "COMPLETED", result={"SS": ["a"]})
    with pytest.raises(ResultUnavailable, match="SS"):
        open_once().run("order-42", again)


def test_a_result_that_looks_like_a_place_in_s3_is_a_result(open_once, row):
    row("order-42", "COMPLETED", result={"M": {"bucket": {"S": "b"}, "key": {"S": "k"}}})
    assert open_once(blobs=Blobs("s3://other")).run("order-42", again) == {"bucket": "b", "key": "k"}


def test_a_completed_row_is_replayed_until_it_expires(open_once, row):
    row("order-42", "COMPLETED", expires_in=100)
    assert open_once(ahead=110).run("order-42", lambda: "anew") == "anew"


@pytest.mark.parametrize("status", ["COMPLETED", "completed", "Completed", "DONE", "SUCCESS", "processed"])
def test_a_completed_row_has_one_of_many_words(open_once, row, status):
    row("order-42", status)
    assert open_once().run("order-42", again) is None


@pytest.mark.parametrize("status", ["IN_PROGRESS", "INPROGRESS", "in-progress", "In_Progress", "PROCESSING", "pending"])
def test_a_row_in_progress_is_honoured_until_its_expiry(open_once, row, status):
    row("order-42", status, expires_in=100)
    with pytest.raises(Busy) as caught:
        open_once(ahead=90).run("order-42", again)
    assert 5 < caught.value.retry_after < 15
    claim = open_once(ahead=103).acquire("order-42")
    assert claim.attempt == 2


def test_a_row_in_progress_without_an_expiry_is_held(open_once, row):
    row("order-42", "IN_PROGRESS", expires_in=None)
    with pytest.raises(Busy):
        open_once(ahead=10**8).run("order-42", again)


def test_a_row_that_failed_is_tried_again(open_once, row):
    row("order-42", "FAILED")
    assert open_once().acquire("order-42").attempt == 2


def test_a_row_of_an_unknown_status_is_an_error_that_names_it(open_once, row):
    row("order-42", "shipped")
    with pytest.raises(StoreError, match=r"'shipped'.*order-42"):
        open_once().run("order-42", again)


# --- rows of ours -------------------------------------------------------------------------------------------------


def test_our_row_is_in_progress_and_then_completed(open_once, read):
    claim = open_once().acquire("order-42", retention=1000)
    assert read("order-42")["status"] == {"S": "IN_PROGRESS"}
    claim.complete({"receipt": 7})
    row = read("order-42")
    assert (row["status"], row["result"]) == ({"S": "COMPLETED"}, {"S": '{"receipt":7}'})
    assert 990 < int(row["expiry"]["N"]) - time.time() < 1010
    assert open_once().run("order-42", again) == {"receipt": 7}


@pytest.mark.parametrize("ending", ["released", "parked", "not JSON"])
def test_no_other_row_of_ours_is_completed(open_once, read, ending):
    once = open_once()
    claim = once.acquire("order-42")
    if ending == "released":
        claim.release()
    elif ending == "parked":
        claim.park("no")
    else:
        claim.complete((1, 2))
    assert read("order-42")["status"] == {"S": "IN_PROGRESS"}
    if ending == "released":
        assert once.acquire("order-42").attempt == 2
    elif ending == "parked":
        with pytest.raises(Parked):
            once.run("order-42", again)
    else:
        assert once.run("order-42", again) == (1, 2)


def test_the_end_of_a_lease_is_never_the_expiry_that_dynamodb_deletes_by(open_once, read):
    open_once().acquire("order-42", lease=10, retention=1000)
    assert int(read("order-42")["expiry"]["N"]) > time.time() + 1000


def test_the_words_of_the_old_program_are_written(open_once, read, row):
    names = {"IN_PROGRESS": "busy", "COMPLETED": "ok", "expiry": "ttl"}
    claim = open_once(names=names).acquire("order-42")
    assert read("order-42")["status"] == {"S": "busy"}
    claim.complete(1)
    assert (read("order-42")["status"], "ttl" in read("order-42")) == ({"S": "ok"}, True)
    row("order-43", "ok", result={"S": "3"})
    assert open_once(names=names).run("order-43", again) == 3


def test_what_the_old_program_writes_over_our_row_is_believed(open_once, dynoxide, table):
    once = open_once()
    once.acquire("order-42")
    dynoxide.ask(
        "UpdateItem",
        TableName=table,
        Key={"id": {"S": "order-42"}},
        UpdateExpression="SET #s = :s, #r = :r",
        ExpressionAttributeNames={"#s": "status", "#r": "result"},
        ExpressionAttributeValues={":s": {"S": "COMPLETED"}, ":r": {"S": "1"}},
    )
    assert once.run("order-42", again) == 1


# --- ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["order-42", "42", "with space", "a:b", "true", "\u00e9", "x" * 200])
def test_a_key_of_the_named_namespace_stands_bare(text, open_once, row):
    row(text, "COMPLETED", result={"S": "7"})
    assert open_once().run(text, again) == 7


def test_a_key_of_another_namespace_does_not_meet_it(open_once, row):
    row("order-42", "COMPLETED", result={"S": "7"})
    assert open_once().using(name="other").run("order-42", lambda: "ran") == "ran"
    assert open_once().using(name="orders").run(("order-42",), lambda: "ran") == "ran"


PIECES = st.lists(st.sampled_from(["orders:", "a", ":", '"', "1", " ", "\\", "\u00e9", "x" * 200]), max_size=6)


@given(PIECES.map("".join))
def test_no_two_keys_have_one_id(key):
    layout = Plain("id={orders:key}")
    assert layout.key_of(layout.id_of(key)) == key


@given(PIECES.map("".join), st.integers(0, 20))
def test_a_scan_asks_for_all_keys_with_its_prefix(key, length):
    layout = Plain("id={orders:key}")
    assert layout.id_of(key).startswith(layout.starts(key[:length]))

"""A table of AWS Lambda Powertools, whose records our workers go on with, on a real server, and whose keys we make."""

import time

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.base import _prepare_data
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyPersistenceLayerError
from hypothesis import given
from hypothesis import strategies as st

from onceward import Busy, KeyMissing, Once, Parked
from onceward.core.drivers import drive
from onceward.core.selections import ByKey
from onceward.keys.ledger_keys import ledger_key
from onceward.stores.contract import DamagedRecord
from onceward.stores.dynamodb.powertools import Powertools, powertools_key, powertools_name
from onceward.stores.dynamodb.store import DynamoStore
from onceward.testing.bench import claim_of, next_of
from printed.pages import blocks
from servers.needs import numbers
from stores.dynamodb_desk import plain_wires
from tables import each

NUMBERS = numbers()
NAME = "shop.charge"
ORDER = {"id": "order-42", "amount": 7}
KEY = powertools_key(ORDER, "id")
ID = f"{NAME}#{KEY}"


class Context:
    """What Lambda tells a handler of its time."""

    def __init__(self, milliseconds):
        self.get_remaining_time_in_millis = lambda: milliseconds


class Shop:
    """One table, and workers of both kinds on it; ``ran`` tells whose handler ran."""

    def __init__(self, dynoxide, proxy, keys=("id",), layout=None, **layer):
        self.server, self.proxy, self.options = dynoxide, proxy, layer
        self.table = dynoxide.table(f"powertools-{next(NUMBERS)}", dict.fromkeys(keys, "S"))
        self.client = boto3.client("dynamodb", endpoint_url=dynoxide.url, region_name="eu-west-1")
        self.layout = layout or Powertools()
        self.ran = []
        self.stores = []
        self.once = self.ours()

    def ours(self, **options):
        self.stores.append(DynamoStore(self.table, plain_wires(self.proxy.url), layout=self.layout))
        return Once(self.stores[-1], name=NAME, **options)

    def theirs(self, handler=None, remaining=60_000, **config):
        """A function that Powertools guards, as it runs in a Lambda function with ``remaining`` milliseconds."""
        config = IdempotencyConfig(
            event_key_jmespath="id", lambda_context=None if remaining is None else Context(remaining), **config
        )
        layer = DynamoDBPersistenceLayer(self.table, boto3_client=self.client, **self.options)

        @idempotent_function(data_keyword_argument="order", config=config, persistence_store=layer, key_prefix=NAME)
        def charge(order):
            self.ran.append("theirs")
            return {"by": "theirs"} if handler is None else handler()

        return lambda: charge(order=ORDER)

    def run(self, once=None, handler=None, **options):
        def charge(order):
            self.ran.append("ours")
            return {"by": "ours"} if handler is None else handler()

        return (once or self.once).using(**options).run(KEY, charge, ORDER)

    def ahead(self, seconds):
        """Let the server's clock show a later time (seconds) to our workers. Theirs read the machine's."""
        self.proxy.date = lambda: time.time() + seconds
        self.once = self.ours()

    def close(self):
        for store in self.stores:
            store.close()
        self.client.close()


@pytest.fixture
def make(dynoxide, proxy):
    made = []

    def shop(*args, **options):
        made.append(Shop(dynoxide, proxy, *args, **options))
        return made[-1]

    yield shop
    for one in made:
        one.close()


@pytest.fixture
def shop(make):
    return make()


def hanging(shop, **options):
    """Leave a claim of Powertools behind, as of a worker that was killed."""

    def killed():
        raise SystemExit

    with pytest.raises(SystemExit):
        shop.theirs(killed, **options)()
    shop.ran.clear()


@pytest.mark.parametrize("result", [{"by": "theirs"}, None, 0, "", [], {"a": [1.5, "\u00e4"]}])
def test_a_result_of_powertools_is_replayed(shop, result):
    shop.theirs(lambda: result)()
    assert shop.run() == result
    assert shop.ran == ["theirs"]


@pytest.mark.filterwarnings("ignore:Couldn't determine the remaining time:UserWarning")
@pytest.mark.parametrize(("remaining", "ends"), [(60_000, 60), (None, 3600)])
def test_a_claim_of_powertools_is_honoured_until_it_lapses_and_then_taken_over(shop, remaining, ends):
    hanging(shop, remaining=remaining)
    shop.ahead(ends - 5)
    with pytest.raises(Busy) as caught:
        shop.run()
    assert 0 < caught.value.retry_after < 8
    shop.ahead(ends + 3)
    claim = shop.once.acquire(KEY)
    assert claim.attempt == 2
    assert abs(claim.fence / 1e6 - time.time() - ends) < 10
    claim.complete({"by": "ours"})
    assert shop.run() == {"by": "ours"}


@pytest.mark.parametrize("options", [{"on_lapse": "park"}, {"max_attempts": 1}])
def test_a_lapsed_claim_of_powertools_is_parked_where_none_may_be_retried(shop, options):
    hanging(shop, remaining=1)
    shop.ahead(3)
    with pytest.raises(Parked):
        shop.run(**options)
    assert shop.ran == []


def test_what_a_takeover_has_seen_must_still_be_there(shop):
    hanging(shop, remaining=1)
    store, key = shop.stores[0], f"{NAME}:{KEY}"

    def swap(seen):
        return drive(store.swap(claim_of(key, "me", fence=9), seen), store)

    seen = drive(store.load(key), store).record
    completed_late(shop)
    now = drive(store.load(key), store).record
    assert swap(seen)[:2] == (False, now)
    held = drive(store.insert(claim_of("another", "me")), store).record
    many = drive(store.swap_many([(claim_of(key, "me", fence=9), seen), (next_of(held), held)]), store)
    assert [reply.won for reply in many] == [False, True]
    assert drive(store.delete(seen), store).won is False
    assert swap(now).won
    assert swap(now).won is False


@pytest.mark.parametrize("end", ["", "complete", "release", "park"])
@pytest.mark.parametrize("taken_over", [False, True])
def test_powertools_neither_runs_nor_replays_what_has_a_record_of_ours(shop, taken_over, end):
    if taken_over:
        hanging(shop, remaining=1)
        shop.ahead(3)
    claim = shop.once.acquire(KEY)
    if end:
        getattr(claim, end)()
    with pytest.raises(IdempotencyPersistenceLayerError):
        shop.theirs()()
    assert shop.ran == []


def completed_late(shop):
    """What a late Powertools worker does to any record: an unconditional update of three attributes."""
    layer = DynamoDBPersistenceLayer(shop.table, boto3_client=shop.client)
    layer.configure(IdempotencyConfig(event_key_jmespath="id", expires_after_seconds=7200), key_prefix=NAME)
    layer.save_success(data=ORDER, result={"by": "late"})


def test_a_late_powertools_worker_does_not_end_our_claim(shop):
    hanging(shop, remaining=1)
    shop.ahead(3)
    claim = shop.once.acquire(KEY)
    completed_late(shop)
    claim.complete({"by": "ours"})
    assert shop.run() == {"by": "ours"}


@pytest.mark.parametrize(
    ("keys", "layout", "layer"),
    [
        (
            ("pk", "sk"),
            ("pk=idempotency#fn", "sk={key}"),
            {"key_attr": "pk", "sort_key_attr": "sk", "static_pk_value": "idempotency#fn"},
        ),
        (
            ("id",),
            ("id={key}", None, {"status": "a", "expiration": "b", "data": "c", "in_progress_expiration": "d"}),
            {"status_attr": "a", "expiry_attr": "b", "data_attr": "c", "in_progress_expiry_attr": "d"},
        ),
    ],
    ids=["a sort key", "other names"],
)
def test_a_table_of_another_form_is_read(make, keys, layout, layer):
    shop = make(keys, Powertools(*layout), **layer)
    shop.theirs()()
    assert shop.run() == {"by": "theirs"}
    shop.ahead(3610)
    assert shop.run() == {"by": "ours"}
    assert shop.run() == {"by": "ours"}


def test_records_of_both_are_listed_and_purged(shop):
    store = shop.stores[0]
    shop.theirs()()
    shop.once.run("readable", lambda: 1)
    shop.client.put_item(TableName=shop.table, Item={"id": {"S": f"{NAME}#x"}, "status": {"S": "shipped"}})
    page = drive(store.select(ByKey(f"{NAME}:"), None, 100), store)
    assert sorted(record.key for record in page.records) == sorted([f"{NAME}:{KEY}", f"{NAME}:readable"])
    assert drive(store.select(ByKey("shop.other:"), None, 100), store).records == []
    shop.ahead(30 * 86_400)
    later = shop.stores[-1]
    assert drive(later.purge(100), later).deleted == 2
    assert len(shop.server.items(shop.table)) == 1


def test_an_item_that_is_nobodys_record_is_an_error_that_names_it(shop):
    shop.client.put_item(TableName=shop.table, Item={"id": {"S": ID}, "status": {"S": "shipped"}})
    with pytest.raises(DamagedRecord, match=r"shop\.charge:.*cannot be read"):
        shop.run()
    assert shop.ran == []


DATA = [{"b": 1, "a": [1, 2.5, None, True, "\u00e4\U0001f511"]}, "text", False, 1.0]


def theirs_of(data, function="", key_prefix=NAME, **config):
    layer = DynamoDBPersistenceLayer("t", boto3_client=boto3.client("dynamodb", region_name="eu-west-1"))
    layer.configure(IdempotencyConfig(raise_on_no_idempotency_key=True, **config), function, key_prefix)
    try:
        return layer._get_hashed_idempotency_key(data=_prepare_data(data))
    finally:
        layer.client.close()


def id_of(key):
    return Powertools().key(key)["id"]["S"]


@each("data", DATA)
def test_a_key_is_the_one_that_powertools_makes(aws, data):
    assert f"{NAME}#{powertools_key(data)}" == theirs_of(data)


EVENT = {"body": '{"user": "u", "product": 7}', "coded": "eyJhIjogMX0=", "list": [{"a": 1}, {"a": 2}]}


@each(
    "path",
    [
        "powertools_json(body).[user, product]",
        "powertools_json(powertools_base64(coded))",
        "list[*].a",
        "{x: body, y: missing}",
    ],
)
def test_a_path_finds_what_it_finds_for_powertools(aws, path):
    assert f"{NAME}#{powertools_key(EVENT, path)}" == theirs_of(EVENT, event_key_jmespath=path)


@each(("data", "path"), [({}, ""), ("", ""), (None, ""), (ORDER, "missing"), (ORDER, "[missing, nothing]"), ([], "")])
def test_a_missing_key_is_an_error_where_powertools_would_run_unprotected(data, path):
    with pytest.raises(KeyMissing):
        powertools_key(data, path)


@each("lambda_name", ["test-func", "orders-prod"])
def test_a_function_without_a_key_prefix_is_met(aws, monkeypatch, lambda_name):
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", lambda_name)
    name = powertools_name("app.outer.<locals>.handler")
    assert id_of(ledger_key(name, KEY)) == theirs_of(ORDER, "app.outer.<locals>.handler", None, event_key_jmespath="id")


@each("prefix", ["svc:orders", "with space", "100%", "v2#orders", "%3A", "a\u00a0b"])
def test_a_key_prefix_of_any_characters_is_met(aws, prefix):
    name = powertools_name(key_prefix=prefix)
    assert id_of(ledger_key(name, KEY)) == f"{prefix}#{KEY}"
    assert Powertools().key_in({"id": {"S": f"{prefix}#{KEY}"}}) == f"{name}:{KEY}"


PIECES = st.lists(
    st.sampled_from(["a", "#", '"', "%", "%3A", "1" * 32, KEY, "\\", "\u00e9"]), min_size=1, max_size=5
).map("".join)
PARTS = PIECES | st.just(10**32) | st.tuples(PIECES) | st.uuids()


@given(PIECES, PARTS)
def test_no_two_keys_of_a_guard_have_one_id(name, part):
    layout, key = Powertools(), ledger_key(name, part)
    assert layout.key_in(layout.key(key)) == key


@pytest.mark.filterwarnings("ignore:Couldn't determine the remaining time:UserWarning")
def test_the_example_of_a_switch_meets_the_same_records(dynoxide, proxy):
    table = dynoxide.table(f"docs-{next(NUMBERS)}", {"id": "S"})
    client = boto3.client("dynamodb", endpoint_url=dynoxide.url, region_name="eu-west-1")
    places = {
        'Layer("idempotency")': f'Layer("{table}", boto3_client=client)',
        "dynamodb://idempotency?": f"dynamodb://{table}?endpoint={proxy.url}&",
        'return {"receipt"': 'ran.append(__name__)\n    return {"receipt"',
    }
    ran = []
    for name in ("before", "after"):
        (block,) = [one for one in blocks("docs/how-to/migrate.md", "From Powertools") if one.title == f"{name}.py"]
        code, space = block.text, {"__name__": name, "client": client, "ran": ran}
        for there, here in places.items():
            code = code.replace(there, here)
        exec(code, space)
        assert space["charge"](order={"shop": "s", "id": 7}) == {"receipt": 7}
    assert ran == ["before"]
    space["once"].close()
    client.close()

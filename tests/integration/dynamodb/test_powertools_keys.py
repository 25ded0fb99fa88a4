"""The keys that Powertools makes, made by us: both meet the same records."""

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig
from aws_lambda_powertools.utilities.idempotency.base import _prepare_data
from hypothesis import given
from hypothesis import strategies as st

from onceward import KeyMissing
from onceward.keys.ledger_keys import ledger_key
from onceward.stores.dynamodb.powertools import Powertools, powertools_key, powertools_name
from printed.pages import blocks
from servers.needs import numbers
from tables import each

NUMBERS = numbers()
NAME = "shop.charge"
ORDER = {"id": "order-42", "amount": 7}
KEY = powertools_key(ORDER, "id")


DATA = [
    {"b": 1, "a": [1, 2.5, None, True, "\u00e4\U0001f511"]},
    "text",
    False,
    1.0,
]


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


EVENT = {
    "body": '{"user": "u", "product": 7}',
    "coded": "eyJhIjogMX0=",
    "list": [{"a": 1}, {"a": 2}],
}


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


def example(name):
    (found,) = [one for one in blocks("docs/how-to/migrate.md", "From Powertools") if one.title == f"{name}.py"]
    return found.text


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
        code, space = example(name), {"__name__": name, "client": client, "ran": ran}
        for there, here in places.items():
            code = code.replace(there, here)
        exec(code, space)
        assert space["charge"](order={"shop": "s", "id": 7}) == {"receipt": 7}
    assert ran == ["before"]
    space["once"].close()
    client.close()

"""What docs/reference/lambda.md shows can be run, and what it lists is what there is."""

import re

import onceward.aws
from onceward.consumers.delivery import DeliveryOptions
from onceward.core.policy import Options
from places import DOCS
from queues import lambda_events as events
from tables import each

TEXT = (DOCS / "reference" / "lambda.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"(?<!-->\n)```python\n(.*?)```", TEXT, re.DOTALL)  # not those that are marked "not run"

CALLS = {
    0: {"handler": (events.sqs({"order": {"id": 1}}), {"batchItemFailures": []})},
    1: {
        "handler": (events.sqs({"id": "a", "total": 5}, {"id": 7}), {"batchItemFailures": [{"itemIdentifier": "m-1"}]})
    },
    2: {
        "clicks": (events.kinesis({"page": "/"}), {"batchItemFailures": []}),
        "thumbnails": (events.s3("a"), None),
        "invoice": ({"customer": 1, "month": 2}, {"number": "1-2"}),
    },
    3: {"charge": ({"id": 1}, "charged and mailed")},
}


@each("number", range(len(EXAMPLES)))
def test_the_examples_run(number):
    space = {"__name__": f"example_{number}"}
    source = EXAMPLES[number].replace("dynamodb://orders-ledger?region=eu-west-1", "memory:")
    assert "dynamodb:" not in source
    exec(source, space)
    for name, (event, answer) in CALLS[number].items():
        for _ in range(2):
            assert space[name](event, events.Context()) == answer


def test_every_wrapper_and_every_setting_is_told_of():
    wrappers = [name for name in onceward.aws.__all__ if name.startswith("on_")]
    assert [name for name in wrappers if f"`{name}`" not in TEXT] == []
    own = set(DeliveryOptions.__annotations__) - set(Options.__annotations__)
    assert [name for name in own if f"| `{name}` |" not in TEXT] == []

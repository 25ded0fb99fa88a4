"""The key of a CloudEvent is one for each event, whichever form it comes in."""

import pytest

from onceward.cloudevents import cloud_event_key
from onceward.consumers.delivery import Delivery
from onceward.errors import KeyMissing
from tables import each


def delivery(headers=(), data=None):
    made = Delivery("queue", None)
    made.id, made.header, made.data = "m", dict(headers).get, data
    return made


def test_binary_http_and_nats_encode_their_headers_and_have_the_key_of_the_structured_form():
    structured = delivery(data={"specversion": "1.0", "source": "/café", "id": "7 %"})
    encoded = delivery({"ce-source": "/caf%C3%A9", "ce-id": "7%20%25"})
    plain = delivery({"ce_source": "/café", "ce_id": "7 %"})
    assert {cloud_event_key(each) for each in (structured, encoded, plain)} == {"/café 7 %"}


@each("space", [" ", "\t", "\u00a0"])
def test_white_space_in_a_source_is_refused_because_another_event_could_have_its_key(space):
    source = f"/shop{space}eu"
    for event in (
        delivery({"ce_source": source, "ce_id": "7"}),
        delivery({"ce-source": "/shop%20eu", "ce-id": "7"}),
        delivery(data={"specversion": "1.0", "source": source, "id": "7"}),
    ):
        with pytest.raises(KeyMissing, match="white space"):
            cloud_event_key(event)
    assert cloud_event_key(delivery({"ce_source": "/shop", "ce_id": "eu 7"})) == "/shop eu 7"

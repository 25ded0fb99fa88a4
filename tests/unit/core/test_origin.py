"""The origin of a call, from a message's headers to a record and on to the next message."""

from onceward.core.origin import CallOrigin, beginning, decoded, encoded, headers_for, provenance_in, read_origin
from onceward.core.writes import UNKNOWN
from tables import each


def origin_in(headers):
    return provenance_in(headers.get).origin


def test_the_first_handler_is_root_and_a_later_one_passes_it_on():
    assert headers_for("shop:1", None) == {"onceward-root": "shop:1", "onceward-parent": "shop:1"}
    first = origin_in(headers_for("shop:1", None))
    assert headers_for("payments:1", first) == {"onceward-root": "shop:1", "onceward-parent": "payments:1"}
    assert read_origin(origin_in(headers_for("payments:1", first))) == CallOrigin("shop:1", "payments:1")
    assert read_origin(origin_in({"onceward-parent": "shop:1"})) == CallOrigin("shop:1", "shop:1")


@each("parent", [None, "", 7, "a" * 1025, "a\nb", "a\x7f", "a\x85"])
def test_what_cannot_be_a_key_is_no_origin(parent):
    assert provenance_in({"onceward-root": "shop:1", "onceward-parent": parent}.get) is UNKNOWN


@each("text", [None, "", "{", "[]", '{"root": "a"}', '{"root": 1, "parent": "a"}'])
def test_a_damaged_origin_is_none(text):
    assert read_origin(text) is None
    assert headers_for("shop:1", text)["onceward-root"] == "shop:1"


@each("root", ["shop:1", 'a","parent":"b', "a\\", 'shop:"é %"', "shop:1,", "a'b"])
def test_an_origin_begins_as_its_root_says(root):
    others = ["shop:1", 'a","parent":"b', "a", 'shop:"é %"', "shop:1,", "a'b", "shop:12"]
    for other in {*others, root}:
        origin = origin_in({"onceward-root": other, "onceward-parent": "p"})
        assert origin.startswith(beginning(root)) is (other == root)
    assert decoded(encoded(root)) == root

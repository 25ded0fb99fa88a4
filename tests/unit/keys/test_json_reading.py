"""One rule for bytes that are not quite JSON: each fault has its name and its byte."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.keys.json_reading import NotJson, read_json
from tables import each

FAULTS = [
    (b"\xef\xbb\xbf \n", "it is empty"),
    (b'{"a": NaN}', "NaN at byte 6"),
    (b"[-Infinity]", "-Infinity at byte 1"),
    (b"1e999", "a number that is out of range at byte 0"),
    (b'["\\ud83d\\ude00", "\\ude00"]', "half of a surrogate pair at byte 18"),
    (b'{"\xc3\xa9": "\\ud800\\ud800\\udc00"}', "half of a surrogate pair at byte 8"),
    ('"\ud800"', "half of a surrogate pair at byte 1"),
    (b'{"a": "\xff"}', "what is not UTF-8 at byte 7"),
    (b'\xef\xbb\xbf{"a": 1, "a": 1}', "the name 'a' is there twice at byte 12"),
    (b'{"a": 1, "\\u0061": "\\u003a"}', "the name 'a' is there twice at byte 9"),
    (b'\xef\xbb\xbf{"a": 1,}', "trailing comma in object at byte 11"),
    (b'{"a": 1', "it ends too early"),
    (b"[" * 100_000, "it is nested too deep"),
    (gzip.compress(b"{}", mtime=0), "it is compressed with gzip"),
    ("{}".encode("utf-16"), "it is UTF-16"),
    ('{"a": 1}'.encode("utf-16-be"), "it is UTF-16"),
    ("{}".encode("utf-32"), "it is UTF-32"),
]


@each(("body", "why"), FAULTS)
def test_what_is_not_quite_json_is_refused_with_its_name_and_its_byte(body, why):
    with pytest.raises(NotJson, match=f"^not JSON: {why}$"):
        read_json(body)


@each(
    "text",
    [
        '{"a": {"b": 1}, "c": {"b": 1}}',
        '"\\ud83d\\ude00 \\\\ud800"',
        '{"a": "NaN: {\\"a\\": 1, \\"a\\": 2}"}',
        '{"n": 99999999999999999999}',
    ],
)
def test_what_only_looks_odd_is_read(text):
    assert read_json("\ufeff" + text) == read_json(b"\xef\xbb\xbf" + text.encode()) == json.loads(text)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "a:", "\\u0061"]), st.sampled_from(["1", '"\\u003a"', '":"']))))
def test_a_name_is_found_twice_where_json_finds_it_twice(pairs):
    text = "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"
    names = [json.loads(f'"{name}"') for name, _ in pairs]
    if len(set(names)) == len(names):
        assert read_json(text) == json.loads(text)
    else:
        with pytest.raises(NotJson, match="is there twice"):
            read_json(text)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(body):
    try:
        value = read_json(body)
    except NotJson:
        return
    assert json.loads(body) == value

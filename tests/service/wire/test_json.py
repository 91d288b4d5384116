"""JSON that two readers could understand differently is refused."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.testclient import TestClient
from support.sizes import by_size

from dsearch.engine import Collection
from dsearch.service.errors import InvalidJson
from dsearch.service.wire.json import MAX_DEPTH, parse, wants_tensors

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(_VALUES, st.booleans())
@settings(max_examples=by_size(50, 500))
def test_what_json_can_say_is_read_as_it_was_said(value: object, escaped: bool) -> None:
    assert parse(json.dumps(value, ensure_ascii=escaped).encode()) == value


@given(st.binary(max_size=40) | st.text('{}[]",:0eNaIin\\ud8 ', max_size=30).map(str.encode))
@settings(max_examples=by_size(100, 1000))
def test_anything_else_is_a_problem_and_no_crash(body: bytes) -> None:
    with contextlib.suppress(InvalidJson):
        parse(body)


BAD = {
    "nan": b'{"query": "cat", "hop_strength": NaN}',
    "infinity": b'{"query": "cat", "hop_strength": Infinity}',
    "overflow": b'{"query": "cat", "hop_strength": 1e999}',
    "duplicate": b'{"query": "cat", "query": "dog"}',
    "duplicate, escaped": b'{"query": "cat", "quer\\u0079": "dog"}',
    "duplicate, deep": b'{"query": "cat", "x": [{"a": 1, "a": 2}]}',
    "lone surrogate": b'{"query": "\\ud800"}',
    "lone surrogate, low": b'{"query": "\\udc00 cat"}',
    "not utf-8": b'{"query": "\xff"}',
    "utf-16": '{"query": "cat"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"query": "cat"}',
    "single quotes": b"{'query': 'cat'}",
    "trailing comma": b'{"query": "cat",}',
    "two values": b'{"query": "cat"} {}',
    "comment": b'{"query": "cat"} // x',
    "cut off": b'{"query": "ca',
    "deep": b"[" * 100 + b"]" * 100,
    "very deep": b"[" * 1010 + b"]" * 1010,
    "far too deep": b'{"a":' * 100_000,
    "many digits": b'{"query": ' + b"1" * 5000 + b"}",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_ambiguous_json_is_refused(client: TestClient, papers: Collection, body: bytes) -> None:
    answered = client.post(
        "/v1/collections/papers/search", content=body, headers={"Content-Type": "application/json"}
    )
    assert (answered.status_code, answered.json()["code"]) == (422, "invalid_json")


def test_a_place_is_counted_from_one() -> None:
    with pytest.raises(InvalidJson, match="byte 3 is not UTF-8"):
        parse(b'"a\xff"')
    with pytest.raises(InvalidJson, match="line 2, column 2; send"):
        parse(b'{"a": 1,\n x}')


def test_the_depth_limit_is_exact() -> None:
    parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(InvalidJson, match="at most 64"):
        parse(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("application/x-safetensors", True),
        ("Application/X-Safetensors;q=0.9, */*", True),
        ("*/*", False),
        (None, False),
    ],
)
def test_tensors_are_answered_where_they_are_named_in_any_case(accept: str | None, wanted: bool) -> None:
    headers = [] if accept is None else [(b"accept", accept.encode())]
    assert wants_tensors(Request({"type": "http", "headers": headers})) == wanted


def test_brackets_in_strings_are_no_depth() -> None:
    assert parse(json.dumps(["[" * 1000]).encode()) == ["[" * 1000]

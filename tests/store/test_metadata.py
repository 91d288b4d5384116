"""Metadata is checked and written in one walk; the text is that of the canonical JSON of digests."""

from __future__ import annotations

import enum
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.errors import InvalidDocument
from dsearch.store.sqlite.digest import canonical_json
from dsearch.store.validate import RefusedValue, canonical_metadata
from dsearch.types import Document

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    """A text of a derived class."""


@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_what_is_written_is_canonical_json_and_comes_back(metadata):
    written = canonical_metadata(metadata)
    assert written == canonical_json(metadata)
    assert json.loads(written) == metadata


def test_every_character_is_written_as_in_canonical_json():
    """Flat metadata has another writer than the rest; letters and the order of keys are the same."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    for start in range(0, len(characters), 4096):
        metadata = dict.fromkeys(characters[start : start + 4096], "x")
        metadata["text"] = "".join(characters[start : start + 4096])
        assert canonical_metadata(metadata) == canonical_json(metadata)
    ends = {characters[place]: place for place in range(0, len(characters), 9973)}
    assert canonical_metadata(ends) == canonical_json(ends)


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63 - 1, -(2**63), 1e16, 1e-7, 0.1, -0.0, 5e-324])
def test_numbers_are_written_as_in_canonical_json(number):
    metadata = {"b": number, "a": "x"}
    assert canonical_metadata(metadata) == canonical_json(metadata)
    assert canonical_metadata({"of": metadata}) == canonical_json({"of": metadata})


@pytest.mark.parametrize("metadata", [{"a": "\ud800"}, {"\udfff": 1}])
def test_a_lone_surrogate_is_told_by_its_place(store, metadata):
    with pytest.raises(InvalidDocument, match="lone surrogate at character"):
        store.upsert([Document("d", "x", metadata=metadata)])


def test_values_of_derived_classes_count_as_their_base():
    metadata = {Word("b"): Level.LOW, "a": np.float64(0.5), "c": Word("x"), "d": [Level.LOW, True, -0.0]}
    assert canonical_metadata(metadata) == '{"a":0.5,"b":1,"c":"x","d":[1,true,-0.0]}'
    assert canonical_metadata(metadata) == canonical_json(metadata)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_an_integer_that_sqlite_would_round_is_refused(number):
    assert canonical_metadata({"a": number - (1 if number > 0 else -1)})
    with pytest.raises(RefusedValue, match=r"more than 64 bits at metadata\.a"):
        canonical_metadata({"a": number})


def test_a_refusal_says_where():
    with pytest.raises(RefusedValue, match=r"has a complex at metadata\.a\[1\]\.b; use null"):
        canonical_metadata({"a": [0, {"b": 1j}]})


def test_metadata_of_derived_classes_is_stored(store):
    store.upsert([Document("d", "x", metadata={"level": Level.LOW})])
    assert store.get("d").metadata == {"level": 1}

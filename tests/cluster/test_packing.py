"""What travels between processes of a cluster comes back as it was, and is data alone."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

msgpack = pytest.importorskip("msgpack", reason="comes with Ray")

from dsearch.cluster import messages, packing
from dsearch.cluster.packing import pack, unpack
from dsearch.store import parse_filter
from dsearch.types import Document, Highlight, Passage

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec=None))  # lone surrogates, too
PLAIN = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | TEXTS | st.binary(),
    lambda some: st.lists(some) | st.tuples(some, some) | st.dictionaries(TEXTS | INTEGERS, some),
)


def require_same(found: Any, expected: Any) -> None:
    """Equal, and of the same types throughout."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f")
        assert found.flags.writeable
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            require_same(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            require_same(one, other)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            require_same(found[key], expected[key])
    else:
        assert found == expected


@given(PLAIN)
@example({"\ud83d": "cut \ud83d"})  # few drawn texts have a lone surrogate
def test_whatever_is_plain_comes_back(value: Any) -> None:
    require_same(unpack(pack(value)), value)


def test_records_come_back() -> None:
    either = [{"a.b": {"in": ["x", None, True, 1]}}, {"not": {"c": {"exists": True}}}]
    tree = parse_filter({"year": {"gte": 2**62, "lt": 2.5}, "or": either})
    question = messages.ProposalRequest(
        folded=np.array([[[0.5, -np.inf, np.nan]]], np.float32),
        texts=["ein Wort"],
        mode="hybrid",
        candidates=7,
        filter=tree,
        required=("ein",),
        excluded=(),
        partition=True,
        keyword_weight=np.ones(1, np.float32),
        temperature=0.05,
        weighting=(1.2, 0.75),
        preview=messages.HitPreview(3, None, True, False),
    )
    document = Document("d", "text", "title", {"deep": {"list": [1, 2.5, None, True]}}, value=[1.0, 2.0])
    shown = messages.ShardHit(
        document, Passage(0, 1, 2, "e"), {"ein": 0.25}, [Highlight("text", 0, "text", [(0, 2), (3, 4)])]
    )
    every_other = np.arange(6, dtype=np.int64)[None, ::2]
    dense, keyword = np.zeros((1, 2, 3), np.float32), np.zeros((1, 3), np.float32)
    proposal = messages.Proposal(3, every_other, dense, keyword, None, None, {4: shown})
    arrays = (np.empty((0, 4), np.float32), np.array(3.0), np.array([True]))
    for record in (question, proposal, [shown, shown], arrays, ["a", "b"]):
        require_same(unpack(pack(record)), record)


def test_every_record_is_known() -> None:
    """One that is new is missed here, not on a cluster."""
    made = {kind for _, kind in inspect.getmembers(messages, dataclasses.is_dataclass)}
    assert made <= set(packing._CLASSES)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.float32(1), np.array([None]), Exception("x"), len])
def test_nothing_else_travels(value: Any) -> None:
    with pytest.raises(TypeError, match="does not travel to shards"):
        pack([value])


def test_programs_do_not_arrive() -> None:
    with pytest.raises((ValueError, msgpack.exceptions.UnpackException)):
        unpack(pickle.dumps(Document("d", "text")))
    for name in ("Popen", "object", "ndarray", "partial"):
        with pytest.raises(KeyError):
            unpack(msgpack.packb({None: [name, "ls"]}))
    with pytest.raises(ValueError, match="OBJECT array"):
        unpack(msgpack.packb({None: ["array", "|O", [1], b"\0" * 8]}))

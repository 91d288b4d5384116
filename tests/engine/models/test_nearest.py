"""Which memory gets which index."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dsearch.attention.memory_rows import FixedMemory
from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.engine.models import memory as module
from dsearch.engine.models.memory import INDEXED_FROM, LENDERS_FROM, LISTS_FROM, IndexedKeys, index_keys
from dsearch.index.dense.index import ScannedKeys


def head_of(queries: int, documents: int) -> FixedHead:
    drawn = np.random.default_rng(0).standard_normal
    at = np.arange(queries)
    head = FixedHead(8)
    head.memory = FixedMemory(
        drawn((queries, 8)).astype(np.float32),
        drawn((documents, 8)).astype(np.float32),
        np.arange(documents),
        at,
        at % documents,
        np.ones(queries),
    )
    return head


@pytest.mark.parametrize(
    ("queries", "documents", "index", "lenders"),
    [
        (9, 9, None, None),
        (10, 5, ScannedKeys, None),
        (29, 19, ScannedKeys, None),
        (30, 19, IndexedKeys, None),
        (9, 20, None, IndexedKeys),
        (30, 20, IndexedKeys, IndexedKeys),
    ],
)
def test_each_size_has_its_index(
    monkeypatch: pytest.MonkeyPatch, queries: int, documents: int, index: type | None, lenders: type | None
) -> None:
    monkeypatch.setattr(module, "INDEXED_FROM", 10)
    monkeypatch.setattr(module, "LENDERS_FROM", 20)
    monkeypatch.setattr(module, "LISTS_FROM", 30)
    built: list[int] = []

    def build(rows: np.ndarray, kind: str) -> SimpleNamespace:
        assert kind == "IVFPQ"
        np.testing.assert_allclose(np.abs(rows - expected[len(rows)]).max(), 0, atol=1e-6)
        built.append(len(rows))
        return SimpleNamespace(__len__=lambda: len(rows))

    head = head_of(queries, documents)
    expected = {queries: head.memory.states, documents: head.memory.embeddings}
    monkeypatch.setattr(module.DenseIndex, "build", build)
    assert index_keys(head) is head
    for found, kind in ((head.memory.index, index), (head.memory.lenders, lenders)):
        assert found is None if kind is None else type(found) is kind
    assert built == [queries] * (index is IndexedKeys) + [documents] * (lenders is IndexedKeys)


def test_a_head_without_a_memory_gets_none() -> None:
    head = FixedHead(8)
    assert index_keys(head) is head
    assert head.memory is None


def test_sizes_as_they_are_documented() -> None:
    assert (INDEXED_FROM, LENDERS_FROM, LISTS_FROM) == (512, 4096, 20_000)

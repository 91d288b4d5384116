"""Further embeddings in a generation: written in parts, opened as one, and absent where nothing is long."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dsearch.errors import CorruptData, InvalidRequest
from dsearch.index import Generation, PassageTable

ENCODER = {"name": "test"}
DIM = 6


def unit(count: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def table(owners: list[int], seed: int = 1) -> PassageTable:
    long, count = len(set(owners)), len(owners)
    spans = np.arange(2 * count).reshape(count, 2)
    first = np.arange(2 * long).reshape(long, 2) + 100
    return PassageTable(np.array(owners, np.int64), spans, first, unit(count, seed))


def build(folder, passages=(), **options):
    return Generation.build(
        folder,
        number=1,
        sequence=7,
        rows=np.arange(10, 15),
        embeddings=unit(5),
        passages=passages,
        texts=["a"] * 5,
        encoder=ENCODER,
        **options,
    )


def test_parts_are_one_table(tmp_path):
    parts = [table([1, 1]), PassageTable.empty(DIM), table([3, 4, 4], seed=2)]
    manifest = build(tmp_path / "000001", parts)
    assert (manifest.format, manifest.rows, manifest.passages) == (3, 5, 5)
    opened = Generation.open(tmp_path / "000001")
    assert len(opened) == 5
    assert opened.passages.owners.tolist() == [1, 1, 3, 4, 4]
    assert opened.passages.spans.tolist() == [*parts[0].spans.tolist(), *parts[2].spans.tolist()]
    assert opened.passages.first_spans.tolist() == [[100, 101], [100, 101], [102, 103]]
    assert np.array_equal(opened.embeddings, unit(5))
    assert np.array_equal(opened.passages.embeddings, np.concatenate([unit(2, 1), unit(3, 2)]))
    assert np.array_equal(opened.vectors, np.concatenate([unit(5), unit(2, 1), unit(3, 2)]))
    assert len(opened.dense) == 10
    _, found = opened.dense.search(opened.vectors[[0, 7]], 1)
    assert found.tolist() == [[0], [7]]


def test_without_long_documents_nothing_is_written_that_an_older_release_does_not_know(tmp_path):
    manifest = build(tmp_path / "000001", [PassageTable.empty(DIM)])
    assert manifest.format == 2
    written = json.loads((tmp_path / "000001" / "manifest.json").read_bytes())
    assert "passages" not in written
    assert not [name for name in written["files"] if "span" in name or "owner" in name]
    assert len(Generation.open(tmp_path / "000001").passages) == 0


def test_a_document_costs_what_all_its_embeddings_cost(tmp_path):
    plain = build(tmp_path / "000001").dense["measured"]["bytes_per_document"]
    long = build(tmp_path / "000002", [table([0] * 20)]).dense["measured"]["bytes_per_document"]
    assert long > 3 * plain


@pytest.mark.parametrize("parts", [[[1, 0]], [[1], [1]], [[2], [1]], [[5]]])
def test_owners_that_do_not_ascend_are_refused(tmp_path, parts):
    with pytest.raises(InvalidRequest, match="owners of passages"):
        build(tmp_path / "000001", [table(owners) for owners in parts])
    assert list(tmp_path.iterdir()) == []


def test_further_embeddings_are_checked_like_the_first(tmp_path):
    bad = table([1])
    bad.embeddings[0, 0] = np.nan
    with pytest.raises(InvalidRequest, match="NaN or infinity in rows 5 to 5"):
        build(tmp_path / "000001", [bad])


@pytest.mark.parametrize("name", ["passage_owners.npy", "passage_spans.npy", "first_spans.npy"])
def test_every_file_is_proven(tmp_path, name):
    build(tmp_path / "000001", [table([1, 3])])
    path = tmp_path / "000001" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptData, match=f"{name}: SHA-256 differs"):
        Generation.open(tmp_path / "000001")


def test_files_that_do_not_fit_each_other_are_refused(tmp_path):
    build(tmp_path / "000001", [table([1, 3])])
    np.save(tmp_path / "000001" / "passage_owners.npy", np.array([1, 3, 3]))
    with pytest.raises(ValueError, match="do not fit each other"):
        PassageTable.load(tmp_path / "000001", np.zeros((2, 4), np.float32))

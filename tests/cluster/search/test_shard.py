"""A shard's own answers, before anything is merged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.cluster.messages import ProposalRequest
from dsearch.cluster.release import split
from dsearch.cluster.shards.shard import LocalShards
from dsearch.engine import SearchEngine
from dsearch.types import Document

QUERIES, DOCUMENTS, DIM = 4, 60, 32


def unit(generator: np.random.Generator, count: int) -> np.ndarray:
    vectors = generator.standard_normal((count, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("shards", [1, 3])
def test_scores_are_sums_in_float64_rounded_once(tmp_path: Path, shards: int) -> None:
    """So equal documents tie wherever they lie; of sums in float32 most would differ in the last bit."""
    generator = np.random.default_rng(7)
    embeddings, queries = unit(generator, DOCUMENTS), unit(generator, QUERIES)
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        made = engine.create("random")
        made.store.upsert([Document(f"d{i}", f"text {i}") for i in range(DOCUMENTS)], embeddings)
        made.refresh()
        split(made.store, made.snapshot.generation, tmp_path / "release", shards)
    question = ProposalRequest(
        folded=queries[:, None],
        texts=None,
        mode="dense",
        candidates=DOCUMENTS,
        filter=None,
        required=(),
        excluded=(),
        partition=False,
        keyword_weight=None,
        temperature=1.0,
    )
    local = LocalShards(tmp_path / "release")
    exact = queries.astype(np.float64) @ embeddings.astype(np.float64).T
    for shard in local.shards:
        proposal = shard.propose(question)
        expected = np.take_along_axis(exact, proposal.positions, axis=1).astype(np.float32)
        assert proposal.positions.min() >= 0
        np.testing.assert_array_equal(proposal.dense[:, 0], expected)
    local.close()

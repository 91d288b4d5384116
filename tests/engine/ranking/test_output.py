"""An output by its parts, and one of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsearch.engine.ranking.output import SearchOutput, in_sequences
from dsearch.errors import Conflict

BATCH, STEPS, HEADS, CANDIDATES = 2, 3, 2, 4
FLAT = BATCH * STEPS


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(np.prod(shape))).view(shape)


def output(**changes: Any) -> SearchOutput:
    parts: dict[str, Any] = {
        "context": numbers(FLAT, 5),
        "weights": numbers(FLAT, CANDIDATES),
        "positions": np.arange(FLAT * CANDIDATES).reshape(FLAT, CANDIDATES),
        "scores": numbers(FLAT, CANDIDATES),
        "dense": numbers(FLAT, HEADS, CANDIDATES),
        "keyword": numbers(FLAT, HEADS, CANDIDATES) * 10,
        "head_weights": numbers(FLAT, HEADS, CANDIDATES),
        "folded": numbers(FLAT, HEADS, 5),
    }
    return SearchOutput(**{**parts, **changes})


def test_sequences_have_each_array_text_and_id_by_step() -> None:
    texts = [[f"t{query} {at}" for at in range(CANDIDATES)] for query in range(FLAT)]

    def ids_of(positions: np.ndarray) -> list[list[str]]:
        return [[f"d{at}" for at in row if at >= 0] for row in positions.tolist()]

    flat = output(texts=texts, ids_of=ids_of, covered_mass=numbers(FLAT), documents=np.arange(FLAT))
    found = in_sequences(flat, (BATCH, STEPS))
    assert found.context.shape == (BATCH, STEPS, 5)
    assert found.dense.shape == (BATCH, STEPS, HEADS, CANDIDATES)
    assert found.positions.shape == (BATCH, STEPS, CANDIDATES)
    assert found.covered_mass is not None
    assert found.covered_mass.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.documents is not None
    assert found.documents.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.texts == [texts[:STEPS], texts[STEPS:]]
    ids = ids_of(flat.positions)
    assert found.ids == [ids[:STEPS], ids[STEPS:]]
    assert torch.equal(found.dense[1, 0], flat.dense[STEPS])
    assert (found.memory, found.second, found.recalled) == (None, None, None)


def test_without_texts_and_ids_sequences_have_none() -> None:
    found = in_sequences(output(), (BATCH, STEPS))
    assert found.texts is None
    with pytest.raises(
        Conflict, match=r"ids of a layer without a collection; open it with dsearch\.open_layer"
    ):
        _ = found.ids


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("memory", [False, True])
def test_raw_scores_are_the_sum_of_the_parts(memory: bool, second: bool) -> None:
    parts = {"memory": numbers(FLAT, CANDIDATES) + 0.5} if memory else {}
    more = {"second": numbers(FLAT, CANDIDATES) * 100} if second else {}
    made = output(**parts, **more)
    first = made.dense + made.keyword
    if memory:
        first = first + parts["memory"][:, None]
    assert torch.equal(made.first_raw, first)
    assert torch.equal(made.raw, first + more["second"][:, None] if second else first)


def test_documents_beyond_share_no_attention() -> None:
    assert np.array_equal(output().sharing, output().positions)
    is_extra = np.zeros((FLAT, CANDIDATES), bool)
    is_extra[:, 2:] = True
    sharing = output(is_extra=is_extra).sharing
    assert (sharing[:, 2:] == -1).all()
    assert np.array_equal(sharing[:, :2], output().positions[:, :2])

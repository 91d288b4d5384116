"""Embeddings that are renewed slice by slice while an encoder learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsearch.training import full_task as moving_index
from dsearch.training.full_task import MovingIndex
from dsearch.training.loop.distributed import Processes
from dsearch.types import Progress


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> list[list[int]]:
    """Positions of each call of the encoder, which embeds a document by the table that it is."""
    calls: list[list[int]] = []

    def by_all(table: Any, texts: list[str], role: str, *, chunk: int, processes: Processes) -> np.ndarray:
        assert (role, chunk, processes) == ("document", 7, Processes())
        calls.append([int(text) for text in texts])
        return np.stack([table[int(text)] for text in texts]).astype(np.float32)

    monkeypatch.setattr(moving_index, "encoded_by_all", by_all)
    return calls


def index(stored: Any, visible: list[int], steps: int) -> MovingIndex:
    return MovingIndex(
        np.array(stored, np.float32),
        np.array(visible, np.int64),
        lambda at: [str(position) for position in at.tolist()],
        steps_a_round=steps,
        chunk=7,
        processes=Processes(),
    )


def test_after_a_round_everything_visible_was_encoded_anew(encoded: list[list[int]]) -> None:
    moving = index(np.zeros((6, 2)), [0, 1, 3, 4, 5], steps=3)
    table: Any = np.ones((6, 2))
    for _ in range(3):
        moving.step(table)
    assert encoded == [[0, 1], [3, 4], [5, 0]]
    assert moving.embeddings[:, 0].tolist() == [1, 1, 0, 1, 1, 1]
    moving.step(table)
    assert encoded[-1] == [1, 3]


def test_what_is_stored_stays_as_it_is(encoded: list[list[int]]) -> None:
    stored, visible = np.zeros((2, 2), np.float32), np.arange(2)
    moving = MovingIndex(
        stored, visible, lambda at: ["0", "1"], steps_a_round=1, chunk=7, processes=Processes()
    )
    moving.step(np.ones((2, 2)))  # type: ignore[arg-type]
    assert moving.embeddings.all()
    assert not stored.any()


def test_without_rounds_the_stored_embeddings_stay(encoded: list[list[int]]) -> None:
    moving = index(np.zeros((2, 2)), [0, 1], steps=0)
    moving.step(np.ones((2, 2)))  # type: ignore[arg-type]
    assert encoded == []


def test_more_steps_than_documents_encode_one_each(encoded: list[list[int]]) -> None:
    moving = index(np.zeros((2, 2)), [0, 1], steps=9)
    for _ in range(3):
        moving.step(np.ones((2, 2)))  # type: ignore[arg-type]
    assert encoded == [[0], [1], [0]]


def test_a_renewal_encodes_all_and_reports(encoded: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_index, "_RENEWED_AT_A_TIME", 2)
    reports: list[Progress] = []
    moving = index(np.zeros((4, 2)), [0, 2, 3], steps=1)
    moving.renew(np.ones((4, 2)), reports.append)  # type: ignore[arg-type]
    assert encoded == [[0, 2], [3]]
    assert [(report.stage, report.done, report.total) for report in reports] == [
        ("encode", 2, 3),
        ("encode", 3, 3),
    ]


def test_the_nearest_are_visible_ones_best_first(encoded: list[list[int]]) -> None:
    moving = index([[1, 0], [0.5, 0], [2, 0], [0, 1]], [0, 1, 3], steps=0)
    query = torch.tensor([[1.0, 0.0]])
    assert moving.nearest(query, 2).tolist() == [[0, 1]]
    assert moving.nearest(query, 9).tolist() == [[0, 1, 3]]


def test_staleness_sees_what_comes_up_from_below_the_first_hits(encoded: list[list[int]]) -> None:
    """Of the two hits that are looked at one is left; five times as many are encoded afresh."""
    stored = [[12 - number, 0.0] for number in range(12)]
    moving = index(stored, list(range(12)), steps=0)
    fresh = np.array(stored)
    query = torch.tensor([[1.0, 0.0]])
    assert moving.staleness(fresh, query, depth=2) == 0.0  # type: ignore[arg-type]
    fresh[9] = [20, 0]
    assert moving.staleness(fresh, query, depth=2) == 0.5  # type: ignore[arg-type]
    assert sorted(encoded[-1]) == list(range(10))
    fresh[9], fresh[11] = stored[9], [20, 0]
    assert moving.staleness(fresh, query, depth=2) == 0.0  # type: ignore[arg-type]
    assert moving.staleness(fresh, query, depth=20) == 0.0  # type: ignore[arg-type]


def test_its_state_is_put_back(encoded: list[list[int]]) -> None:
    moving, other = (index(np.zeros((4, 2)), [0, 1, 2, 3], steps=2) for _ in range(2))
    table: Any = np.ones((4, 2))
    moving.step(table)
    other.load_state({name: tensor.clone() for name, tensor in moving.state().items()})
    other.step(table)
    assert encoded[-1] == [2, 3]
    assert other.embeddings.tolist() == table.tolist()

"""Out of memory: a step is computed again in smaller parts, with the gradient of the whole, and says so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from dsearch.encoder import Encoder
from dsearch.engine import Collection
from dsearch.training import Examples, TrainingOptions, query_options
from dsearch.training.full_task import FullOptions, train_full
from dsearch.training.head_task import train_head, train_student
from dsearch.training.losses.objectives import OBJECTIVES


@pytest.fixture
def tiny(tiny_folder: Path) -> Encoder:
    """One for each test: running out of memory changes its batch size."""
    return Encoder.load(str(tiny_folder))


class Memory:
    """Holds so many texts or queries; the counts that were tried."""

    def __init__(self, holds: int):
        self.holds = holds
        self.tried: list[int] = []

    def take(self, count: int) -> None:
        self.tried.append(count)
        if count > self.holds:
            raise torch.OutOfMemoryError(f"{count} do not fit")


def limit_texts(monkeypatch: pytest.MonkeyPatch, holds: int) -> Memory:
    memory, embed = Memory(holds), Encoder.embed

    def limited(self: Encoder, texts: Sequence[str], role: str) -> torch.Tensor:
        memory.take(len(texts))
        return embed(self, texts, role)

    monkeypatch.setattr(Encoder, "embed", limited)
    return memory


def test_texts_are_encoded_in_halves(
    tiny: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [f"answer {i}" for i in range(100)]
    expected = tiny.encode_documents(texts)
    memory = limit_texts(monkeypatch, 9)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(tiny.encode_documents(texts), expected, atol=1e-6)
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory: 16 texts are encoded at a time from now on",
        "out of memory: 8 texts are encoded at a time from now on",
    ]
    assert memory.tried.count(32) == 1
    assert tiny.batch_size == 8


def test_a_text_that_does_not_fit_is_an_error(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_texts(monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError):
        tiny.encode_queries(["answer 1", "answer 2"])


@pytest.mark.parametrize("keywords", [True, False])
def test_a_head_learns_the_same_from_parts(
    examples: Examples,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    keywords: bool,
) -> None:
    options = TrainingOptions(epochs=2, batch_size=10, keywords=keywords)
    expected = train_head(examples, options)
    memory, listwise = Memory(3), OBJECTIVES["listwise"]

    def limited(batch):
        memory.take(len(batch.states))
        return listwise(batch)

    monkeypatch.setattr("dsearch.training.head_task.OBJECTIVES", {**OBJECTIVES, "listwise": limited})
    with caplog.at_level(logging.WARNING):
        found = train_head(examples, options)
    assert [record.getMessage() for record in caplog.records] == [
        f"out of memory in stage train: {n} queries at a time from now on" for n in (5, 3)
    ]
    for ours, theirs in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_query_encoder_learns_the_same_from_parts(
    examples: Examples, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = query_options(epochs=1, batch_size=8, encoder_learning_rate=1e-3)
    expected = train_student(examples, options, encoder=tiny).change
    memory = limit_texts(monkeypatch, 5)
    found = train_student(examples, options, encoder=tiny).change
    assert memory.tried[:3] == [8, 4, 4]
    assert expected is not None
    assert found is not None
    for name, tensor in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], tensor, rtol=1e-3, atol=1e-5)


def test_both_encoders_learn_the_same_from_smaller_chunks(
    examples: Examples, numbers: Collection, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(chunk: int) -> dict[str, torch.Tensor]:
        trained = train_full(
            examples,
            lambda at: numbers.store.contents(examples.snapshot.rows(at)),
            FullOptions(batch_size=8, chunk=chunk),
            encoder=tiny,
        )
        assert trained.student.change is not None
        return trained.student.change.tensors

    expected = train(4)
    memory = limit_texts(monkeypatch, 5)
    found = train(16)
    assert memory.tried[:3] == [8, 8, 4]
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())

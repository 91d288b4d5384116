"""The model that answers held-out queries: with an encoder that learns, and with the stored embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import LearningEncoder
from dsearch.training.data.examples import Examples
from dsearch.training.loop.loop import Student


class Learning(LearningEncoder):
    """An encoder that tells what it was asked for."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)

    def embed(self, texts: list[str], role: str) -> Any:
        return texts, role

    def encode_queries(self, texts: list[str]) -> Any:
        assert texts == ["a", "b"]
        return -np.eye(2, dtype=np.float32)


def _examples() -> Examples:
    """Two queries without documents."""
    examples = object.__new__(Examples)
    object.__setattr__(examples, "texts", ["a", "b"])
    object.__setattr__(examples, "states", np.eye(2, dtype=np.float32))
    return examples


EXAMPLES = _examples()


def test_queries_are_embedded_as_queries_by_the_encoder_that_learns() -> None:
    encoder: Any = Learning()
    student = Student(Head(2), encoder)
    assert student.embed(["a"]) == (["a"], "query")
    assert student.states(EXAMPLES).tolist() == (-np.eye(2)).tolist()


def test_without_an_encoder_the_stored_embeddings_answer() -> None:
    student = Student(Head(2))
    assert student.states(EXAMPLES) is EXAMPLES.states
    assert student.change is None
    with pytest.raises(TypeError, match="no encoder"):
        student.embed(["a"])

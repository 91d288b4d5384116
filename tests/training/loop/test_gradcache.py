"""The gradient of a loss over many texts is that of one pass, with no more texts at a time than a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.fakes import HashingEncoder
from torch import Tensor

from dsearch.training.loop.distributed import cached_backward

QUERIES, DOCUMENTS = ["where is it", "who"], [f"{'word ' * (n * 5 % 7 + 1)}number{n}" for n in range(9)]


class Counting(HashingEncoder):
    """Notes how many texts are encoded at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def learning(self) -> list[torch.nn.Parameter]:
        return [self.weight]

    def embed(self, texts: Sequence[str], role: str) -> Tensor:
        self.counts.append(len(texts))
        return super().embed(texts, role)


def gradient(chunk: int, lists: Sequence[tuple[list[str], str]]) -> tuple[float, Tensor, list[int]]:
    encoder: Any = Counting()

    def loss(embedded: list[Tensor]) -> Tensor:
        queries, documents = embedded
        weights = torch.arange(1.0, 1 + len(documents))  # each document counts otherwise
        return ((queries @ documents.T).exp() * weights).sum() + queries[:, 0].sum()

    value = cached_backward(encoder, lists, loss, chunk=chunk)  # type: ignore[arg-type]
    assert encoder.weight.grad is not None
    return value.item(), encoder.weight.grad, encoder.counts


@pytest.mark.parametrize(("chunk", "passes"), [(4, 2 * 1 + 2 * 3), (2, 2 * 1 + 2 * 5), (1, 2 * 2 + 2 * 9)])
def test_chunks_have_the_gradient_of_the_whole(unchecked: None, chunk: int, passes: int) -> None:
    lists = [(QUERIES, "query"), (DOCUMENTS, "document")]
    value, whole, counts = gradient(99, lists)
    assert counts == [2, 9]
    again, parts, counts = gradient(chunk, lists)
    assert again == pytest.approx(value)
    torch.testing.assert_close(parts, whole)
    assert max(counts) <= chunk
    assert len(counts) == passes


def test_a_list_without_texts_has_no_part(unchecked: None) -> None:
    """Negatives that nothing was mined for."""
    value, found, _ = gradient(99, [(QUERIES, "query"), ([], "document")])
    assert value == pytest.approx(Counting().embed(QUERIES, "query")[:, 0].sum().item())
    assert found.any()

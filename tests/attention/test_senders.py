"""No sender has more than its share of a query's attention, however many rows it has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dsearch.attention.memory_rows as module
from dsearch.attention.arrays import numbers_of
from dsearch.attention.memory_rows import KEY_SHARE, TRUSTED, FixedMemory, capped
from dsearch.attention.retrieval.memory import QueryMemory

FLOOD, HONEST = 7, 8


def memory_of(senders: list[int]) -> QueryMemory:
    """Past queries in one direction, a little apart; each judged a document of its own, the last two."""
    count = len(senders)
    states = np.eye(1, 6, dtype=np.float32).repeat(count, 0)
    states[:, 1] = np.linspace(0, 0.2, count)
    which = np.arange(count)
    return QueryMemory(
        states,
        np.eye(count, 6, dtype=np.float32),
        10 + which,
        which,
        which,
        np.ones(count),
        texts=[""] * count,
        senders=np.array(senders),
        strength=0.8,
        temperature=0.05,
        null_level=0.5,
    )


def test_the_cap_by_hand() -> None:
    weights = torch.tensor([[0.4, 0.2, 0.3, 0.05]])
    senders = torch.tensor([[FLOOD, FLOOD, HONEST, TRUSTED]])
    expected = [0.4 * 0.5 / 0.6, 0.2 * 0.5 / 0.6, 0.3, 0.05]
    assert capped(weights, senders)[0].tolist() == pytest.approx(expected)
    alone = torch.full((1, 4), TRUSTED)
    assert torch.equal(capped(weights, alone), weights)


def test_many_rows_of_one_sender_have_no_more_than_one_share() -> None:
    query = torch.eye(1, 6)
    flooded = memory_of([FLOOD] * 5 + [HONEST])
    _, attention = flooded.attention(query)
    of_flood = attention[0, flooded.senders == FLOOD]
    assert of_flood.sum().item() == pytest.approx(KEY_SHARE)
    assert flooded(query).relevance[0, :5].sum().item() <= 0.8 * KEY_SHARE + 1e-6
    trusted = memory_of([TRUSTED] * 6)
    assert trusted.attention(query)[1].sum().item() > 0.9


def test_a_row_of_nobody_does_not_lift_the_cap_of_the_others() -> None:
    mixed, query = memory_of([FLOOD] * 5 + [TRUSTED]), torch.eye(1, 6)
    expected = mixed.attention(query)[1][0, :5].sum().item()
    assert expected == pytest.approx(KEY_SHARE)
    served = FixedMemory.sharing(mixed).attention(query.numpy())[1]
    assert numbers_of(served)[0, :5].sum() == pytest.approx(KEY_SHARE)


def test_without_the_cap_they_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "capped", lambda weights, _: weights)
    _, attention = memory_of([FLOOD] * 5 + [HONEST]).attention(torch.eye(1, 6))
    assert attention[0, :5].sum().item() > 0.8


def test_the_cap_has_gradients() -> None:
    memory = memory_of([FLOOD] * 2 + [HONEST])
    query = torch.tensor([[1.0, 0.3, 0.1, 0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda states: memory.attention(states)[1], (query,), atol=1e-4)


def test_senders_stay_apart_when_rows_are_added() -> None:
    """The same query of another sender is another row; of the same one the later grades count."""
    first, more = memory_of([FLOOD, HONEST]), memory_of([HONEST, HONEST])
    longer = first.extended(more)
    assert longer.senders.tolist() == [FLOOD, HONEST, HONEST]
    assert longer.of_inserted().senders.tolist() == [HONEST, HONEST]
    again = longer.extended(more)
    assert again.senders.tolist() == longer.senders.tolist()
    assert again.with_setting(0.1, 0.05, 0.5).attention(torch.eye(1, 6))[1][0, 0].item() <= KEY_SHARE + 1e-6


def test_what_was_left_is_lowered() -> None:
    memory = QueryMemory(
        np.eye(1, 4, dtype=np.float32),
        np.eye(2, 4, dtype=np.float32),
        np.array([1, 2]),
        np.array([0, 0]),
        np.array([0, 1]),
        np.array([2.0, -0.4]),
        strength=1.0,
    )
    relevance = memory(torch.eye(1, 4)).relevance[0]
    assert relevance[0] > 0
    assert relevance[1].item() == pytest.approx(-0.2 * relevance[0].item())

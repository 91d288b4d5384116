"""Past queries recalled in NumPy are those that the memory recalls with gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsearch.attention.memory_rows import KEY_SHARE, NEAREST, TRUSTED
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.index.dense.index import SPARE, ScannedKeys

QUERIES, DOCUMENTS, DIM = 300, 90, 24


def memory_of(random: np.random.Generator, senders: np.ndarray | None = None) -> QueryMemory:
    of_query = np.arange(QUERIES).repeat(3)
    return QueryMemory(
        random.standard_normal((QUERIES, DIM)).astype(np.float32),
        random.standard_normal((DOCUMENTS, DIM)).astype(np.float32),
        np.arange(1, DOCUMENTS + 1),
        of_query,
        random.integers(DOCUMENTS, size=len(of_query)),
        random.uniform(0.5, 3.0, len(of_query)),
        senders=senders,
        strength=0.7,
        temperature=0.1,
        null_level=0.3,
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("indexed", [QUERIES, QUERIES - 40])
def test_recall_is_that_of_the_formula(batch: int, shared: bool, indexed: int) -> None:
    random = np.random.default_rng(batch)
    senders = random.integers(-1, 2, QUERIES) if shared else np.full(QUERIES, TRUSTED)
    exact = memory_of(random, senders)
    served = exact.with_setting(*exact.setting)
    served.index = ScannedKeys(exact.keys.numpy()[:indexed], exact.key_scales.numpy()[:indexed])
    states = torch.as_tensor(random.standard_normal((batch, DIM)).astype(np.float32))
    expected = exact(states)
    with torch.no_grad():
        recalled = served(states)
        rows, weights = served.attention(states)
    assert isinstance(recalled.rows, torch.Tensor)
    assert torch.allclose(recalled.relevance, expected.relevance, atol=1e-6)
    assert torch.equal(rows, recalled.rows)
    assert torch.allclose(0.7 * weights, recalled.weights, atol=1e-6)
    for line, other in zip(recalled.rows.tolist(), expected.rows.tolist(), strict=True):
        assert set(line) == set(other)
    assert torch.allclose(recalled.weights.sum(1), expected.weights.sum(1), atol=1e-6)
    assert served(states).weights.requires_grad  # with gradients the formula itself


def test_the_first_row_is_recalled_where_the_index_names_fewer() -> None:
    """Rows that an index does not find are −1, which is not the row 0."""
    memory = memory_of(np.random.default_rng(0))
    states = (memory.keys[:1].float() * memory.key_scales[:1, None]).repeat(2, 1)
    expected = memory.with_setting(*memory.setting)(states)

    class Fewer(ScannedKeys):
        def nearest(self, queries: np.ndarray, count: int) -> np.ndarray:
            found = ScannedKeys.nearest(self, queries, count)
            found[1, -1] = -1
            return found

    memory.index = Fewer(memory.keys.numpy(), memory.key_scales.numpy())
    with torch.no_grad():
        recalled = memory(states)
    assert recalled.rows[:, 0].tolist() == [0, 0]
    assert torch.allclose(recalled.relevance, expected.relevance, atol=1e-6)
    assert torch.allclose(recalled.weights.sum(1), expected.weights.sum(1), atol=1e-6)


def test_a_query_of_zeros_and_an_absent_row_recall_nothing_wrong() -> None:
    memory = memory_of(np.random.default_rng(0))

    class WithGap(ScannedKeys):
        def nearest(self, queries: np.ndarray, count: int) -> np.ndarray:
            found = ScannedKeys.nearest(self, queries, count)
            found[:, 1] = -1
            return found

    memory.index = WithGap(memory.keys.numpy(), memory.key_scales.numpy())
    with torch.no_grad():
        recalled = memory(torch.zeros(1, DIM))
    assert torch.isfinite(recalled.relevance).all()
    assert len(set(recalled.rows[0].tolist())) == NEAREST


def test_scanned_keys_hold_the_nearest_whatever_their_units() -> None:
    random = np.random.default_rng(3)
    memory = memory_of(random)
    codes, scales = memory.keys.numpy(), memory.key_scales.numpy()
    assert scales.max() > 1.2 * scales.min()
    index = ScannedKeys(codes, scales)
    queries = random.standard_normal((20, DIM)).astype(np.float32)
    found = index.nearest(queries, 10)
    assert found.shape == (20, 10 + SPARE)
    exact = np.argsort(-(queries @ (codes * scales[:, None]).T), axis=1)[:, :10]
    assert all(set(one) <= set(of) for one, of in zip(exact.tolist(), found.tolist(), strict=True))
    assert index.nearest(np.zeros((1, DIM), np.float32), 10).shape == (1, 10 + SPARE)
    assert len(ScannedKeys(codes[:4], scales[:4]).nearest(queries[:1], 10)[0]) == 4


def test_with_an_index_the_queries_own_rows_can_be_left_out_as_well() -> None:
    memory = memory_of(np.random.default_rng(0))
    states = memory.states[:2].detach()
    expected = memory.attention(states, above=0.98)
    memory.index = ScannedKeys(memory.keys.numpy(), memory.key_scales.numpy())
    with torch.no_grad():
        rows, weights = memory.attention(states, above=0.98)
    assert torch.equal(rows, expected[0])
    assert not weights[rows == torch.arange(2)[:, None]].any()
    torch.testing.assert_close(weights, expected[1].detach())


def test_what_is_served_follows_the_setting_and_the_index() -> None:
    """A memory in NumPy is made once, and has γ, τ and c of the moment, and the present index."""
    memory = memory_of(np.random.default_rng(0))
    codes, scales = memory.keys.numpy(), memory.key_scales.numpy()
    states = torch.as_tensor(np.random.default_rng(1).standard_normal((2, DIM)).astype(np.float32))
    memory.index = ScannedKeys(codes, scales)
    with torch.no_grad():
        before = memory(states)
        memory.strength.fill_(1.4)
        torch.testing.assert_close(memory(states).weights, 2 * before.weights)

    class Turned(ScannedKeys):
        def nearest(self, queries: np.ndarray, count: int) -> np.ndarray:
            return ScannedKeys.nearest(self, -queries, count)

    memory.index = Turned(codes, scales)
    with torch.no_grad():
        after = memory(states)
    assert not set(after.rows[0].tolist()) & set(before.rows[0].tolist())


def test_a_memory_of_another_setting_caps_senders_and_a_batch_is_its_queries() -> None:
    random = np.random.default_rng(0)
    memory = memory_of(random, np.zeros(QUERIES, np.int64))
    again = memory.with_setting(*memory.setting)
    states = torch.as_tensor(random.standard_normal((3, DIM)).astype(np.float32)) + memory.states[:3] * 20
    whole = again(states)
    torch.testing.assert_close(whole.weights, memory(states).weights)
    assert whole.weights.sum(1).max() <= 0.7 * KEY_SHARE + 1e-6
    for at in range(3):
        torch.testing.assert_close(again(states[at : at + 1]).relevance[0], whole.relevance[at])

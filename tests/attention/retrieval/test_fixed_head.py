"""A head in NumPy: defaults, each query side, and which tensors it takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dsearch.attention.late_interaction import RerankerIdentity
from dsearch.attention.retrieval.fixed_head import FixedHead, excited_mixture
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.errors import DimensionMismatch

STATES = torch.nn.functional.normalize(torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), dim=-1)


def opened(heads: int, side: str | None) -> Head:
    head = Head(8, heads=heads, rank=3, query_side=side)
    with torch.no_grad():
        for at, parameter in enumerate(head.parameters()):
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(at))
    return head.eval()


@pytest.mark.parametrize(
    ("heads", "side"), [(1, "linear"), (1, "low-rank"), (1, "mlp"), (2, "low-rank"), (3, "mlp")]
)
def test_it_computes_what_the_module_computes(heads: int, side: str) -> None:
    head = opened(heads, side)
    tensors = {name: tensor.numpy() for name, tensor in head.own_tensors().items()}
    fixed = FixedHead.of_tensors(tensors, heads=heads, query_side=side)
    assert fixed is not None
    with torch.no_grad():
        queries = head.queries(STATES)
        np.testing.assert_allclose(fixed.queries(STATES.numpy()), queries, atol=1e-5)
        for name in ("fold", "keys", "values"):
            expected = getattr(head, name)(queries if name == "fold" else STATES)
            given = queries.numpy() if name == "fold" else STATES.numpy()
            np.testing.assert_allclose(getattr(fixed, name)(given), expected, atol=1e-5)
        assert float(fixed.temperature) == pytest.approx(float(head.temperature))
        np.testing.assert_allclose(fixed.mixture, head.mixture, atol=1e-6)


def test_at_the_start_it_changes_nothing() -> None:
    head = FixedHead(8, heads=2, query_side="low-rank")
    states = STATES.numpy()
    assert np.array_equal(head.queries(states), np.broadcast_to(states[:, None], (5, 2, 8)))
    assert head.keys(states) is head.values(states) is head.fold(states) is states
    assert head.keyword_weight.tolist() == [1.0, 1.0]
    assert float(head.temperature) == pytest.approx(0.05)
    assert head.mixture.tolist() == [0.5, 0.5]
    assert (head.bm25, head.memory, head.second_stage) == (None, None, None)
    assert head.keyword_weighting is None
    assert head.learned_score is None
    assert head.settle() is head


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (2.0, 0.0)])
def test_a_keyword_weighting_is_what_was_chosen(k1: float, b: float) -> None:
    """Stored in single precision, in which .4 is .4000000059."""
    assert FixedHead(8, {"bm25": np.array([k1, b], np.float32)}).keyword_weighting == (k1, b)
    head = Head(8)
    head.weigh_keywords(k1, b)
    assert head.keyword_weighting == (k1, b)


@pytest.mark.parametrize("shape", [(8,), (2, 7), (2, 3, 8)])
@pytest.mark.usefixtures("unchecked")
def test_states_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DimensionMismatch, match=r"query states of shape .*; use \[batch, 8\]"):
        FixedHead(8).queries(np.zeros(shape, np.float32))


def test_a_part_that_numpy_does_not_compute_needs_the_module() -> None:
    tensors = {name: tensor.numpy() for name, tensor in opened(1, None).own_tensors().items()}
    assert FixedHead.of_tensors(tensors, heads=1, query_side="linear") is not None
    scored = {**tensors, "score.general.weight": np.eye(8, dtype=np.float32)}
    assert FixedHead.of_tensors(scored, heads=1, query_side="linear") is None
    output = {**tensors, "output.weight": np.ones((2, 8), np.float32), "output.bias": np.ones(2, np.float32)}
    assert FixedHead.of_tensors(output, heads=1, query_side="linear") is not None  # no part of a ranking


def test_a_memory_is_put_beside_all_other_parameters() -> None:
    head = FixedHead(8, {"keyword_weight": np.array([3.0], np.float32)})
    other = head.remembering("memory")
    assert (other.memory, head.memory) == ("memory", None)
    assert other.keyword_weight is head.keyword_weight


def test_shares_of_an_excitation_are_the_modules() -> None:
    head = opened(3, "low-rank")
    module = head.open_excitation(4)
    with torch.no_grad():
        module.excite += 1.0
        folded = head.fold(head.queries(STATES))
        expected = module(folded, head.mixture_logits)
    parts = (head.mixture_logits, module.squeeze, module.excite)
    found = excited_mixture(folded.numpy(), *(part.detach().numpy() for part in parts))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    tensors = {name: tensor.numpy() for name, tensor in head.own_tensors().items()}
    fixed = FixedHead.of_tensors(tensors, heads=3, query_side="low-rank")
    assert fixed is not None
    np.testing.assert_allclose(fixed.mixture_of(folded.numpy()), expected, atol=1e-5)
    assert math.isclose(float(expected[0].sum()), 1.0, rel_tol=1e-5)


def test_a_stage_keeps_its_reranker() -> None:
    reranker = RerankerIdentity("some/model", "cross-encoder", "0" * 64)
    head = Head(8).reranking(SecondStage(reranker=reranker))
    tensors = {name: tensor.numpy() for name, tensor in head.own_tensors().items()}
    fixed = FixedHead.of_tensors(tensors, heads=1, query_side="linear", reranker=reranker)
    assert fixed is not None
    assert fixed.second_stage.reranker == reranker

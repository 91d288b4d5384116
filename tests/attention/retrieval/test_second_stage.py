"""The learned part of the second stage: gradients by finite differences, and empty documents."""

from __future__ import annotations

import torch

from dsearch.attention.late_interaction import FEATURES, LEAD, Interactions
from dsearch.attention.retrieval.second_stage import SecondStage


def interactions(counts: list[int], *, dims: int = 4, query: int = 3) -> Interactions:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tokens = torch.nn.functional.normalize(drawn(sum(counts), dims), dim=-1)
    states = torch.nn.functional.normalize(drawn(query, dims), dim=-1)
    steps = torch.linspace(0.5, 1.5, dims, dtype=torch.float64)
    return Interactions(states, drawn(query).abs(), tokens, steps, torch.tensor(counts))


def test_gradients_are_those_of_finite_differences() -> None:
    of, stage = interactions([2, 0, 5, 1]), SecondStage().double()
    features = torch.rand(4, len(FEATURES), dtype=torch.float64)

    def term(strength: torch.Tensor, weights: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        changed = {"stage.strength": strength, "stage.feature_weights": weights}
        return torch.func.functional_call(_Term(stage), changed, (of._replace(query=query), features))

    inputs = (
        torch.tensor(0.5, dtype=torch.float64, requires_grad=True),
        torch.full((len(FEATURES),), 0.1, dtype=torch.float64, requires_grad=True),
        of.query.clone().requires_grad_(),
    )
    assert torch.autograd.gradcheck(term, inputs)


class _Term(torch.nn.Module):
    def __init__(self, stage: SecondStage):
        super().__init__()
        self.stage = stage

    def forward(self, of: Interactions, features: torch.Tensor) -> torch.Tensor:
        return self.stage.term(self.stage.matches(of), features)


def test_a_document_without_tokens_has_no_match() -> None:
    matches = SecondStage().double().matches(interactions([0, 3, 0]))
    assert matches.sharp[0] == matches.sharp[2] == matches.sum[0] == 0
    assert matches.sum[1] > 0


def test_no_tokens_at_all() -> None:
    matches = SecondStage().double().matches(interactions([0, 0]))
    assert matches.sharp.tolist() == [0, 0]


def test_lead_looks_at_the_first_tokens_alone() -> None:
    of = interactions([LEAD + 5, 3])
    tokens = of.tokens.clone()
    tokens[LEAD : LEAD + 5] = 3 * of.query[0] / of.steps  # beyond: nearly the query's own
    stage = SecondStage().double()
    before, after = stage.matches(of), stage.matches(of._replace(tokens=tokens))
    assert torch.equal(before.lead, after.lead)
    assert not torch.equal(before.sum, after.sum)


def test_equal_tokens_match_fully() -> None:
    of = interactions([3])
    own = of._replace(query=of.tokens[:3].clone(), steps=torch.ones(4, dtype=torch.float64))
    matches = SecondStage().double().matches(own)
    torch.testing.assert_close(matches.sharp, torch.ones(1, dtype=torch.float64))


def test_a_stage_starts_as_strong_as_it_is_told() -> None:
    assert SecondStage(strength=0.25).strength.item() == 0.25

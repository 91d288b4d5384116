"""A certificate is never wrong, and is given when it can be."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from dsearch.attention import (
    SCORES,
    additive,
    bound_additive,
    bound_cosine,
    bound_kernel,
    bound_sum,
    certify,
    cosine,
    floor_of,
    top_k,
)
from dsearch.errors import InvalidRequest


class TestCertificate:
    """Scores re-ranked from an exact first stage: a proof is never wrong, and sometimes given."""

    documents, k = 60, 3

    def first_stage(self, candidates: int, seed: int):
        """An exact inner-product search over keys of unequal lengths."""
        generator = torch.Generator().manual_seed(seed)
        queries = torch.randn(1, 4, generator=generator, dtype=torch.float64)
        keys = torch.randn(self.documents, 4, generator=generator, dtype=torch.float64)
        lengths = 0.8 + 0.4 * torch.rand(self.documents, 1, generator=generator)
        keys = keys / keys.norm(dim=1, keepdim=True) * lengths
        found = top_k(queries, keys, candidates)
        return queries, keys, found.rows, floor_of(found.scores)

    @pytest.mark.parametrize("name", ["sum", "cosine", "gaussian", "epanechnikov"])
    def test_a_proof_is_never_wrong_and_is_given_when_it_can_be(self, name):
        proofs = 0
        for seed, first in itertools.product(range(25), (5, 20, 45)):
            noise = torch.Generator().manual_seed(seed)
            extra = torch.rand(1, self.documents, generator=noise, dtype=torch.float64) * 0.3
            queries, keys, rows, floor = self.first_stage(first, seed)
            lengths, reach = keys.norm(dim=1), queries.norm(dim=1)
            shortest, longest = float(lengths.min()), float(lengths.max())
            if name == "sum":
                everything, unseen = queries @ keys.T + extra, bound_sum(floor, 0.3)
            elif name == "cosine":
                everything, unseen = cosine(queries, keys), bound_cosine(floor, reach, shortest, longest)
            else:
                everything = SCORES[name](queries, keys, 4.0)
                unseen = bound_kernel(floor, reach, shortest, name, 4.0)
            hidden = everything.scatter(1, rows, -math.inf)
            assert hidden.max() <= unseen + 1e-9, "the bound itself must hold"
            rescored = everything.gather(1, rows)
            if certify(rescored, self.k, unseen).proved:
                proofs += 1
                best = rows[0, rescored[0].topk(self.k).indices]
                assert set(best.tolist()) == set(everything[0].topk(self.k).indices.tolist())
        assert 0 < proofs < 75

    def test_a_tie_with_the_bound_proves_nothing(self):
        scores = torch.tensor([[3.0, 2.0, 1.0]])
        assert not certify(scores, 2, torch.tensor([2.0])).proved
        certificate = certify(scores, 2, torch.tensor([1.5]))
        assert certificate.proved
        assert certificate.margin.item() == 0.5
        assert certify(scores, 3, torch.tensor([0.5])).proved  # no more candidates than places

    def test_without_a_bound_it_says_so(self):
        certificate = certify(torch.tensor([[3.0, 2.0]]), 1, None)
        assert not certificate.proved
        assert certificate.reason == "no bound on unseen documents is known for this score"
        assert certificate.margin.isnan()

    def test_all_documents_scored_need_no_bound(self):
        assert certify(torch.tensor([[3.0, 2.0]]), 1, None, documents=2).proved
        assert certify(torch.tensor([[3.0, 2.0]]), 5, torch.tensor([9.0]), documents=2).proved
        assert not certify(torch.tensor([[3.0, -math.inf]]), 1, None, documents=2).proved

    def test_fewer_candidates_than_places_prove_nothing(self):
        assert not certify(torch.tensor([[3.0]]), 2, torch.tensor([-9.0])).proved

    def test_additive_scores_have_a_loose_bound(self):
        vector = torch.tensor([1.0, -2.0])
        scores = additive(torch.randn(3, 2) * 9, torch.randn(5, 2) * 9, vector=vector)
        assert scores.max() <= bound_additive(vector) == 3.0

    def test_k_must_be_positive(self):
        with pytest.raises(InvalidRequest, match=r"k=0; use 1 or more"):
            certify(torch.ones(1, 2), 0, None)

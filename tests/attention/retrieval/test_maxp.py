"""The best passage of each document, and head."""

from __future__ import annotations

import torch

from dsearch.attention.retrieval.maxp import best_passages


def test_the_best_passage_by_hand():
    scores = torch.tensor([[[0.1, 0.5, 0.9, 0.5, 0.2]], [[0.3, -1.0, -2.0, 7.0, 7.0]]])
    owners = torch.tensor([[[0, 1, 0, 1, 2]], [[0, 1, 1, 2, 2]]])  # 2 is padding
    assert best_passages(scores, owners, 2).tolist() == [[[2, 1]], [[0, 1]]]


def test_a_score_of_nan_or_nothing_takes_the_first_passage():
    scores = torch.tensor([[torch.nan, 0.5, torch.nan], [-torch.inf, 1.0, -torch.inf]])
    assert best_passages(scores, torch.tensor([0, 1, 0]), 2).tolist() == [[0, 1], [0, 1]]

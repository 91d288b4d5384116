"""Queries and a head away from its start, for tests of `SearchLayer`."""

from __future__ import annotations

import torch

from dsearch.attention.retrieval.head import Head

QUERIES = ["cheese and bread", "lemon honey tea"]


def opened_head(heads: int = 1) -> Head:
    head = Head(32, heads=heads, rank=4)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        head.hop_strength.fill_(0.5)
    return head

"""What holds of every explanation: its parts sum to the score."""

from __future__ import annotations

import pytest

from dsearch.types import Explanation, Hit


def checked_parts(hit: Hit, heads: int) -> Explanation:
    """The parts of a hit's score, which sum to it, and whose terms sum to what keywords gave each head."""
    parts = hit.explain
    assert parts is not None
    total = sum(
        share * (dense + keyword)
        for share, dense, keyword in zip(parts.shares, parts.dense, parts.keyword, strict=True)
    )
    assert total + parts.mixing == pytest.approx(hit.score, abs=1e-5)
    assert sum(parts.shares) == pytest.approx(1.0, abs=1e-5)
    for head in range(heads):
        of_terms = sum(part[head] for part in parts.terms.values())
        assert of_terms == pytest.approx(parts.keyword[head], abs=1e-5)
    return parts

"""Headroom: what is left to gain, before anything is trained. An indication, not a bound.

Training moves relevant documents up, and mostly those that are found already. So what lies between the
recall of the first hundred and that of the first ten is within easy reach; what is not among the hundred at
all is not, though training fetches some of it (SciFact: recall@100 from .955 to .978).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dsearch.attention.head import Head
from dsearch.training.examples import Examples
from dsearch.training.ranking import Ranking
from dsearch.training.relevance import gains_of, padded

FEW_QUERIES = 100
LITTLE_MISSING = 0.02
MOST_ANSWERED = 0.95
_SHALLOW, _DEEP = 10, 100


@dataclass(frozen=True, slots=True)
class Headroom:
    """The present search on the queries that are to be trained on.

    Attributes:
        queries: how many.
        judgements: relevant documents over all of them.
        recall_at_10: the share of the relevant documents among the first ten.
        recall_at_100: among the first hundred.
        answered_first: the share of queries whose first hit is relevant.
    """

    queries: int
    judgements: int
    recall_at_10: float
    recall_at_100: float
    answered_first: float

    @property
    def doubts(self) -> list[str]:
        """Why training is unlikely to help; nothing when there is no reason to think so."""
        found = []
        if self.answered_first >= MOST_ANSWERED:
            found.append(f"{self.answered_first:.0%} of the queries are answered at rank 1 already")
        if self.recall_at_100 - self.recall_at_10 < LITTLE_MISSING and self.answered_first > 0.5:
            found.append("nearly all that is found at all is among the first ten already")
        if self.queries < FEW_QUERIES:
            found.append(
                f"{self.queries} queries are few for a projection; `dsearch tune`, which sets two numbers, "
                "needs only a few dozen"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "doubts": self.doubts}

    def to_text(self) -> str:
        """A line or two for a terminal."""
        line = (
            f"headroom on {self.queries} queries with {self.judgements} judgements: "
            f"recall@10 {self.recall_at_10:.3f}, recall@100 {self.recall_at_100:.3f}, "
            f"answered at rank 1: {self.answered_first:.0%}"
        )
        return "\n".join([line, *(f"training is unlikely to help: {doubt}" for doubt in self.doubts)])


def headroom(examples: Examples, head: Head | None = None, *, keywords: bool = True) -> Headroom:
    """How well `head` (untrained when None) answers the examples now."""
    head = head or Head(examples.states.shape[1])
    top = Ranking(examples, keywords=keywords).top(head, _DEEP, hop_strength=head.hop_strength.item())
    positions, grades = padded(examples.relevant)
    relevant = gains_of(top, positions, grades) > 0
    wanted = (grades > 0).sum(1)
    return Headroom(
        queries=len(examples),
        judgements=int(wanted.sum()),
        recall_at_10=float(np.mean(relevant[:, :_SHALLOW].sum(1) / wanted)),
        recall_at_100=float(np.mean(relevant.sum(1) / wanted)),
        answered_first=float(np.mean(relevant[:, 0])),
    )

"""Check rows of the query memory against those of other contributors, each left out of its own evidence.

    support(i) = Σ_j a_ij s_ij        a: softmax of q_i · q_j / τ over rows j of others, with the null key
    s_ij = R_i · R_j / (|R_i| |R_j|)  grades of the documents

Rows of one contributor never judge each other, so that neither many rows nor the rows of one task speak for
themselves; of the attention one contributor has at most `KEY_SHARE`. A row with support below 0 is
contradicted: similar queries of others left what it calls useful. It is left out if two others contradict it,
and all rows of a contributor most of whose rows with evidence are contradicted, by two others together. So a
single contributor can take out nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int64

from dsearch.attention.memory_rows import START_NULL_LEVEL, START_TEMPERATURE
from dsearch.attention.recall import KEY_SHARE, NEAREST

_AT_A_TIME = 256
_SAYS_SOMETHING = 1e-3  # of the attention
_QUORUM = 2
_ENOUGH = 3  # contradicted rows, to speak of a contributor as a whole
_MOST_CONTRADICTED = 0.5


@dataclass(frozen=True, slots=True)
class Support:
    """Opinion of others on a row: a number, 0 without evidence, and the contributors that contradict it."""

    value: float
    opponents: frozenset[int]


def supports(
    states: Float32[np.ndarray, "rows encoder_dim"],
    grades: Sequence[Mapping[int, float]],
    contributors: Int64[np.ndarray, " rows"],
) -> list[Support]:
    """Support of each row by the rows of other contributors.

    Args:
        states: queries of unit length.
        grades: document → grade.
        contributors: number of the contributor of each row.
    """
    lengths = [sum(grade * grade for grade in of.values()) ** 0.5 for of in grades]
    every: list[Support] = []
    for start in range(0, len(states), _AT_A_TIME):
        mine = slice(start, start + _AT_A_TIME)
        cosines = states[mine] @ states.T
        cosines[contributors[mine, None] == contributors[None]] = -np.inf
        near = np.argsort(-cosines, axis=1, kind="stable")[:, :NEAREST]
        weights = np.exp((np.take_along_axis(cosines, near, 1) - 1) / START_TEMPERATURE)
        weights /= weights.sum(1, keepdims=True) + np.exp((START_NULL_LEVEL - 1) / START_TEMPERATURE)
        for row, (others, attention) in enumerate(zip(near.tolist(), weights.tolist(), strict=True), start):
            by_key: dict[int, tuple[float, float]] = {}
            for other, weight in zip(others, attention, strict=True):
                if weight > _SAYS_SOMETHING:
                    alike = _product(grades[row], grades[other]) / (lengths[row] * lengths[other])
                    share, support = by_key.get(key := int(contributors[other]), (0.0, 0.0))
                    by_key[key] = share + weight, support + weight * alike
            capped = {key: part * min(1.0, KEY_SHARE / share) for key, (share, part) in by_key.items()}
            against = frozenset(key for key, part in capped.items() if part < 0)
            every.append(Support(sum(capped.values()), against))
    return every


def supported(
    support: Sequence[Support], contributors: Int64[np.ndarray, " rows"]
) -> Bool[np.ndarray, " rows"]:
    """True for rows that others do not contradict, of contributors whom they do not contradict mostly."""
    keys = contributors.tolist()
    evidence, contradicted = Counter[int](), Counter[int]()
    opponents: dict[int, set[int]] = {}
    for key, of in zip(keys, support, strict=True):
        evidence[key] += of.value != 0
        if of.value < 0:
            contradicted[key] += 1
            opponents.setdefault(key, set()).update(of.opponents)
    apart = {
        key
        for key, count in contradicted.items()
        if count >= _ENOUGH and count > _MOST_CONTRADICTED * evidence[key] and len(opponents[key]) >= _QUORUM
    }
    return np.array(
        [
            key not in apart and not (of.value < 0 and len(of.opponents) >= _QUORUM)
            for key, of in zip(keys, support, strict=True)
        ],
        bool,
    )


def _product(mine: Mapping[int, float], other: Mapping[int, float]) -> float:
    return sum(mine[document] * other[document] for document in mine.keys() & other.keys())

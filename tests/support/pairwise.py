"""Pairwise combinations: a few rows that have every two values of every two factors together."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]


def pairwise(
    factors: Mapping[str, Sequence[Any]], valid: Callable[[Row], Row] = lambda row: row, *, tries: int = 30
) -> list[Row]:
    """Rows that cover all pairs, or all but a few that `valid` leaves no room for; the same ones each time.

    Args:
        factors: values by name.
        valid: changes a row that makes no sense into one that does.
        tries: rows among which the next one is chosen, by its number of new pairs.
    """
    draw = random.Random(0)
    left = {
        ((one, str(a)), (other, str(b)))
        for one, other in combinations(factors, 2)
        for a in factors[one]
        for b in factors[other]
    }
    rows: list[Row] = []
    misses = 0
    while left and misses < 50:
        first, second = draw.choice(sorted(left))
        best, best_pairs = None, set[Any]()
        for _ in range(tries):
            row = {name: draw.choice(values) for name, values in factors.items()}
            for name, text in (first, second):
                row[name] = next(value for value in factors[name] if str(value) == text)
            row = valid(row)
            pairs = left & {*combinations([(name, str(row[name])) for name in factors], 2)}
            if best is None or len(pairs) > len(best_pairs):
                best, best_pairs = row, pairs
        if best is None or not best_pairs:
            misses += 1
            left.discard((first, second))
            continue
        left -= best_pairs
        rows.append(best)
    return rows

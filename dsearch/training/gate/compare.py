"""Compare two models on the same queries: wins per query, and significance of the difference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dsearch.errors import InvalidRequest, amount
from dsearch.evaluation import Interval, paired_bootstrap
from dsearch.training.gate.decision import sign_flip_p_value

SAMPLES = 10_000
_SAME = 1e-9
_TEXT = 70  # characters of a query that are shown


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """Some queries: the means, how many the second model wins and loses, the difference, its two-sided p."""

    name: str
    queries: int
    first: float
    second: float
    wins: int
    losses: int
    difference: Interval
    p_value: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Second less first: by group, and by query (query id, first, second), largest win first."""

    groups: list[GroupComparison]
    queries: list[tuple[str, float, float]]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def to_text(
        self, first: str, second: str, measure: str, texts: Mapping[str, str], *, show: int = 5
    ) -> str:
        """For a terminal, with the `show` largest wins and losses."""
        lines = [f"{measure}, {second} against {first}"]
        for group in self.groups:
            verdict = "significant" if group.p_value <= 0.05 else "may be chance"
            lines.append(
                f"  {group.name:<7}{amount(group.queries, 'query'):>14}  "
                f"{group.first:.4f} → {group.second:.4f}  "
                f"({group.difference.mean:+.4f} "
                f"[{group.difference.low:+.4f}, {group.difference.high:+.4f}])  "
                f"{group.wins} wins, {group.losses} losses, "
                f"{group.queries - group.wins - group.losses} ties  "
                f"p = {group.p_value:.4f}: {verdict}"
            )
        wins = [row for row in self.queries if row[2] - row[1] > _SAME][:show]
        losses = [row for row in reversed(self.queries) if row[1] - row[2] > _SAME][:show]
        for title, rows in (("largest wins", wins), ("largest losses", losses)):
            if rows:
                lines.append(title)
            lines += [f"  {a:.3f} → {b:.3f}  {id}  {texts.get(id, '')[:_TEXT]}" for id, a, b in rows]
        lines.append("Intervals: 95 % paired bootstrap. p: two-sided, random sign flips.")
        return "\n".join(lines)


def compare_values(
    first: Mapping[str, float],
    second: Mapping[str, float],
    *,
    groups: Mapping[str, Collection[str]] | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare two models' values of one measure, query by query.

    Args:
        first: query id → value.
        second: the other model's, for the same queries.
        groups: further groups beside "all": name → query ids; groups without a query are left out.
        seed: random seed of the resampling.

    Raises:
        InvalidRequest: different queries, or none.
    """
    if first.keys() != second.keys():
        raise InvalidRequest(
            f"{amount(len(first), 'value')} and {len(second)}, not of the same queries; evaluate both models "
            "on the same judgements"
        )
    if not first:
        raise InvalidRequest("there is no judged query with a relevant document to compare on")
    groups_compared = []
    for name, members in {"all": list(first), **(groups or {})}.items():
        queries = [query for query in first if query in set(members)]
        if queries:
            groups_compared.append(_group(name, {q: first[q] for q in queries}, second, queries, seed))
    rows = [(query, first[query], second[query]) for query in first]
    rows.sort(key=lambda row: (row[1] - row[2], row[0]))
    return Comparison(groups_compared, rows)


def _group(
    name: str, first: Mapping[str, float], second: Mapping[str, float], queries: list[str], seed: int
) -> GroupComparison:
    interval = paired_bootstrap({q: second[q] for q in queries}, first, SAMPLES, seed)
    change = np.array([second[query] - first[query] for query in queries])
    either = min(sign_flip_p_value(change, seed=seed), sign_flip_p_value(-change, seed=seed))
    return GroupComparison(
        name,
        len(queries),
        float(np.mean(list(first.values()))),
        float(np.mean([second[query] for query in queries])),
        int((change > _SAME).sum()),
        int((change < -_SAME).sum()),
        interval,
        min(1.0, 2 * either),
    )

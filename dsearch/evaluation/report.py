"""Systems side by side: all, seen and unseen queries, with paired intervals against a baseline.

Intervals are bootstrap confidence intervals of a mean, or a difference of means, over queries. Queries are
resampled with replacement `samples` times; the interval is the middle 95 % of the resampled means (the
percentile bootstrap, Efron 1979; for paired system comparison Sakai, SIGIR 2006).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from jaxtyping import Float

from dsearch.errors import InvalidRequest, amount
from dsearch.evaluation.metrics import Values


@dataclass(frozen=True, slots=True)
class ReportCell:
    """One system's mean on one measure and group, and its difference to the baseline (None for that one)."""

    mean: float
    difference: Interval | None


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One group of queries and one measure, across all systems."""

    group: str
    queries: int
    measure: str
    cells: dict[str, ReportCell]


@dataclass(frozen=True, slots=True)
class BetterLeg:
    """Dense or keyword search by itself where its mean is above that of the search that joins them.

    Attributes:
        leg: the better of the two.
        system: the search that joins them.
        measure: nDCG@10.
        mean: of the leg, on all queries.
        system_mean: of the joined search.
        difference: leg − joined search, paired by query.
        text: one sentence, which says whether chance may explain the difference.
    """

    leg: str
    system: str
    measure: str
    mean: float
    system_mean: float
    difference: Interval
    text: str


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Means and differences; `left_out` counts the judged queries that have no relevant document.

    `better_leg` is None unless dense or keyword search was evaluated and is better by itself.
    """

    systems: list[str]
    baseline: str
    lines: list[ReportLine]
    left_out: int = 0
    better_leg: BetterLeg | None = None

    def cell(self, system: str, measure: str, group: str = "all") -> ReportCell:
        """The cell of one system, measure and group.

        Raises:
            InvalidRequest: there is none.
        """
        for line in self.lines:
            if line.measure == measure and line.group == group and system in line.cells:
                return line.cells[system]
        groups = list(dict.fromkeys(line.group for line in self.lines))
        measures = list(dict.fromkeys(line.measure for line in self.lines))
        raise InvalidRequest(
            f"no cell for {system!r}, {measure!r}, {group!r}; there are systems {self.systems}, "
            f"measures {measures}, groups {groups}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dictionaries, numbers and strings, fit for JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """A table for a terminal: a column per system, and a second row per measure for the differences."""
        head = ["queries", "measure", *self.systems]
        rows: list[list[str]] = [head]
        group = ""
        for line in self.lines:
            label = "" if line.group == group else f"{line.group} ({line.queries})"
            group = line.group
            rows.append([label, line.measure, *(f"{line.cells[name].mean:.4f}" for name in self.systems)])
            if len(self.systems) > 1:
                rows.append(["", "", *(_difference(line.cells[name].difference) for name in self.systems)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = [_aligned(row, widths) for row in rows]
        lines.insert(1, "-" * max(map(len, lines)))
        if len(self.systems) > 1:
            lines.append(
                f"Below each mean: its difference to {self.baseline}, [95 % paired bootstrap interval]."
            )
        if self.left_out:
            lines.append(f"Left out: {amount(self.left_out, 'judged query')} without a relevant document.")
        if self.better_leg is not None:
            lines.append(self.better_leg.text)
        return "\n".join(lines)


def build_report(
    systems: Mapping[str, Values],
    baseline: str | None = None,
    groups: Mapping[str, Collection[str]] | None = None,
    left_out: int = 0,
    samples: int = 10_000,
    seed: int = 0,
) -> EvaluationReport:
    """Compare systems that were evaluated on the same judgements.

    Args:
        systems: system name → result of `evaluate`.
        baseline: system that differences refer to; the first by default.
        groups: further groups beside `all`, such as `{"seen": …, "unseen": …}`: query ids. Ids without a
            value are skipped, groups without any value are omitted.
        left_out: judged queries without a relevant document, for the report.
        samples: bootstrap samples.
        seed: random seed of the bootstrap.

    Raises:
        InvalidRequest: no systems, an unknown baseline, or systems that differ in measures or queries.
    """
    if not systems:
        raise InvalidRequest("a report needs at least one system")
    names = list(systems)
    baseline = names[0] if baseline is None else baseline
    if baseline not in systems:
        raise InvalidRequest(f"baseline {baseline!r} is not among the systems {names}")
    measures = list(systems[baseline])
    order = list(next(iter(systems[baseline].values()), {}))
    _check_same(systems, measures, order)
    lines: list[ReportLine] = []
    for group, members in {"all": order, **(groups or {})}.items():
        chosen = set(members)
        queries = [query for query in order if query in chosen]
        if queries:
            lines += _lines(group, queries, systems, baseline, measures, samples, seed)
    return EvaluationReport(names, baseline, lines, left_out, _better_leg(systems, samples, seed))


_LEGS = ("dense", "keyword")
_LEG_MEASURE = "nDCG@10"


def _better_leg(systems: Mapping[str, Values], samples: int, seed: int) -> BetterLeg | None:
    """Compare the legs with the last of the other systems, which is the one that answers."""
    joined = next((name for name in reversed(list(systems)) if not name.startswith(_LEGS)), None)
    legs = [name for name in _LEGS if systems.get(name, {}).get(_LEG_MEASURE)]  # with a judged query
    if joined is None or not legs:
        return None
    means = {name: fmean(systems[name][_LEG_MEASURE].values()) for name in [*legs, joined]}
    leg = max(legs, key=lambda name: means[name])
    if means[leg] <= means[joined]:
        return None
    values = [systems[name][_LEG_MEASURE] for name in (leg, joined)]
    difference = paired_bootstrap(values[0], values[1], samples, seed)
    chance = "" if difference.low > 0 else ", which may be chance"
    text = (
        f"{leg} alone answers these queries better than {joined}: {_LEG_MEASURE} {means[leg]:.4f} "
        f"against {means[joined]:.4f} ({_difference(difference)}{chance}); `dsearch tune` weighs the two by "
        "judgements."
    )
    return BetterLeg(leg, joined, _LEG_MEASURE, means[leg], means[joined], difference, text)


def _lines(
    group: str,
    queries: Sequence[str],
    systems: Mapping[str, Values],
    baseline: str,
    measures: Sequence[str],
    samples: int,
    seed: int,
) -> list[ReportLine]:
    # values: [queries, systems * measures]; one set of draws serves every cell of the group
    values = np.array([[by[m][q] for by in systems.values() for m in measures] for q in queries], dtype=float)
    values = values.reshape(len(queries), len(systems), len(measures))
    base = values[:, [list(systems).index(baseline)]]
    intervals = bootstrap_columns((values - base).reshape(len(queries), -1), samples, seed)
    means = values.mean(axis=0)
    lines: list[ReportLine] = []
    for column, measure in enumerate(measures):
        cells = {
            name: ReportCell(
                float(means[row, column]),
                None if name == baseline else intervals[row * len(measures) + column],
            )
            for row, name in enumerate(systems)
        }
        lines.append(ReportLine(group, len(queries), measure, cells))
    return lines


def _check_same(systems: Mapping[str, Values], measures: Sequence[str], queries: Sequence[str]) -> None:
    for name, by_measure in systems.items():
        if set(by_measure) != set(measures):
            raise InvalidRequest(
                f"system {name!r} has measures {list(by_measure)}, the baseline has {list(measures)}"
            )
        for measure, values in by_measure.items():
            odd = values.keys() ^ set(queries)
            if odd:
                raise InvalidRequest(
                    f"system {name!r}, {measure}: {amount(len(odd), 'query has', 'queries have')} a value "
                    "in one system only, "
                    f"such as {sorted(odd)[0]!r}; evaluate all systems on the same judgements"
                )


def _difference(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{interval.mean:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """The two labels to the left, numbers to the right."""
    cells = [
        text.ljust(width) if n < 2 else text.rjust(width)
        for n, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


DRAWS_AT_ONCE = 1 << 17  # counts at a time: 1 MiB, which stays in the cache of a core


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % bootstrap interval.

    `p_one_sided` is the share of resampled means at or below 0, (count + 1) / (samples + 1): for a
    difference a - b small when a is really better than b.
    """

    mean: float
    low: float
    high: float
    p_one_sided: float


def paired_bootstrap(
    a: Mapping[str, float], b: Mapping[str, float], samples: int = 10_000, seed: int = 0
) -> Interval:
    """The mean of a - b over queries; a and b are two systems' values for the same queries, paired by id.

    Raises:
        InvalidRequest: the two have different queries, there are none, or `samples` is below 1.
    """
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise InvalidRequest(
            f"{amount(len(a), 'value')} and {len(b)} cannot be paired: "
            f"{amount(len(odd), 'query is', 'queries are')} in one only, such as "
            f"{odd[0]!r}; evaluate both systems on the same judgements"
        )
    return bootstrap_mean({query: a[query] - b[query] for query in a}, samples, seed)


def bootstrap_mean(values: Mapping[str, float], samples: int = 10_000, seed: int = 0) -> Interval:
    """The mean of `values` over queries.

    Raises:
        InvalidRequest: there are no values, or `samples` is below 1.
    """
    return bootstrap_columns(np.array(list(values.values()), dtype=float)[:, None], samples, seed)[0]


def bootstrap_columns(
    values: Float[np.ndarray, "queries columns"], samples: int = 10_000, seed: int = 0
) -> list[Interval]:
    """Compute one interval per column; all columns share the same draws, which is cheap.

    The intervals depend on the order of the queries, within the noise of resampling; the same seed and order
    give the same intervals.

    Raises:
        InvalidRequest: there are no queries, or `samples` is below 1.
    """
    queries = len(values)
    if queries == 0 or samples < 1:
        raise InvalidRequest(
            f"{amount(queries, 'value')} and {samples} samples; a bootstrap needs at least one of each"
        )
    generator = np.random.default_rng(seed)
    means: list[Float[np.ndarray, "block columns"]] = []
    block = max(1, DRAWS_AT_ONCE // queries)
    for start in range(0, samples, block):
        size = min(block, samples - start)
        draws = generator.integers(queries, size=(size, queries))
        draws += queries * np.arange(size)[:, None]  # each sample has its own range of one bincount
        counts = np.bincount(draws.ravel(), minlength=size * queries).reshape(size, queries)
        means.append(counts.astype(float) @ values / queries)
    drawn = np.concatenate(means)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    p = (np.sum(drawn <= 0, axis=0) + 1) / (samples + 1)
    return [
        Interval(float(m), float(lo), float(hi), float(q))
        for m, lo, hi, q in zip(values.mean(axis=0), low, high, p, strict=True)
    ]

"""Score systems of a collection on judged queries: side by side, query by query, and against a baseline.

`run_evaluation` scores the systems of a job, `compare_values` counts the queries that one wins and loses.

`judge_regression` is for the continuous integration of users. The gate asks whether a new head is better than
the live version; here it is asked whether the baseline is better than the present state, by the same paired
test. A regression is a fall of the mean by more than the tolerance that is significant as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsearch.engine import UNTRAINED, Collection, QueryStates, System, make_run
from dsearch.engine.evaluate import absent_documents_warning, trained_apart, with_texts
from dsearch.errors import InvalidRequest, amount
from dsearch.evaluation import (
    Interval,
    Values,
    build_report,
    evaluate,
    paired_bootstrap,
    split_seen,
    without_positives,
)
from dsearch.jobs import EvaluationJob
from dsearch.training.confidence import calibrate_by_judgements
from dsearch.training.gate.decision import sign_flip_p_value
from dsearch.training.gate.gate import MEASURE, Gate, judge
from dsearch.training.gate.held_out import Answers
from dsearch.training.loop.loop import Observer
from dsearch.types import Progress, Query

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
    groups: Mapping[str, Iterable[str]] | None = None,
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


FORMAT = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """Values of one system, query by query.

    Attributes:
        system: name of the system, such as "trained v3".
        values: query id → nDCG@10.
    """

    system: str
    values: dict[str, float]

    @classmethod
    def of(cls, systems: Mapping[str, Values]) -> Baseline:
        """The system that answers: the last one that was evaluated."""
        name = list(systems)[-1]
        return cls(name, dict(systems[name][MEASURE]))

    def write(self, path: Path) -> None:
        """Write it as JSON, one query a line, so that changes can be seen in a diff."""
        content = {"format": FORMAT, "measure": MEASURE, "system": self.system, "values": self.values}
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read what `write` wrote.

        Raises:
            InvalidRequest: there is no such file, or it is not a baseline.
        """
        make = f"write one with: dsearch evaluate … --save-baseline {path}"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if (content["format"], content["measure"]) != (FORMAT, MEASURE):
                raise InvalidRequest(
                    f"{path} has format {content['format']!r} and measure {content['measure']!r}; this "
                    f"release reads format {FORMAT} of {MEASURE}: {make}"
                )
            return cls(str(content["system"]), {str(id): float(of) for id, of in content["values"].items()})
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be read ({error.strerror}); {make}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"{path} is not a baseline; {make}") from error


@dataclass(frozen=True, slots=True)
class Regression:
    """Answers of now against the baseline's.

    Attributes:
        worse: whether this is a regression.
        reason: why, or why not, in words.
        queries: number of queries that both have.
        before, now: their means.
        tolerated: fall of the mean that is no regression.
        p_value: of the fall, one-sided; None where nothing fell.
    """

    worse: bool
    reason: str
    queries: int
    before: float
    now: float
    tolerated: float
    p_value: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def judge_regression(
    baseline: Baseline, now: Baseline, *, tolerated: float, risk: str = "balanced", seed: int = 0
) -> Regression:
    """Compare two evaluations, on the queries that both have.

    Args:
        baseline: evaluation to hold against.
        now: evaluation of what answers now.
        tolerated: fall of mean nDCG@10 that is no regression.
        risk: whose α the fall has to reach.
        seed: random seed of the resampling.

    Raises:
        InvalidRequest: no query in common; tolerance out of range.
    """
    gate = Gate.of_risk(risk, margin=tolerated)
    queries = [id for id in baseline.values if id in now.values]
    if not queries:
        raise InvalidRequest("the baseline has none of these queries; write a new one of this data")

    def answers(of: Baseline) -> Answers:
        values = np.array([of.values[id] for id in queries])
        return Answers(values, np.ones(len(queries), bool), np.full(len(queries), np.nan))

    report = judge(answers(now), answers(baseline), gate, need_slices=False, seed=seed)
    before, after = answers(baseline).all.mean(), answers(now).all.mean()
    fall, p_value = float(before - after), report.p_value if before > after else None
    moved = f"nDCG@10 {before:.4f} → {after:.4f} on {amount(len(queries), 'query')}"
    if fall <= tolerated:
        reason = f"{moved}: no fall of more than {tolerated:g}"
    elif report.passed:
        reason = f"{moved}: a fall of more than {tolerated:g}, p = {p_value:.4f} ≤ {gate.alpha:g}"
    else:
        reason = (
            f"{moved}: a fall of more than {tolerated:g} that may be chance (p = {p_value:.3f} > "
            f"{gate.alpha:g}, or fewer than {amount(gate.min_queries, 'query')})"
        )
    worse = bool(fall > tolerated and report.passed)
    return Regression(worse, reason, len(queries), float(before), float(after), tolerated, p_value)


MOST_SHOWN = 100  # wins, and losses, that a result names


def run_evaluation(
    collection: Collection, job: EvaluationJob, observer: Observer | None = None
) -> dict[str, Any]:
    """Score the systems of a job.

    Returns:
        An `EvaluationReport` as JSON, and a `warning` where a system was trained on some queries, which
        are groups of their own, where relevant documents are not in the collection, or where judged queries
        have no text, which are left out. If the job names
        two or more systems, `comparison` lists the queries that the second wins and loses against the first.

    Raises:
        ModelNotFound: a system of a version that is not there.
        InvalidRequest: no judged query has a relevant document, or none has a text.
    """
    observer = observer or Observer()
    qrels = {query: {id: float(grade) for id, grade in of.items()} for query, of in job.judgements.items()}
    texts = job.queries
    warnings: list[str | None] = []
    qrels = with_texts(qrels, texts, warnings.append)
    queries = [Query(id, texts[id]) for id in qrels]
    groups: dict[str, list[str]] = {}
    if job.training is not None:
        seen, unseen = split_seen(qrels, {query: dict(of) for query, of in job.training.items()})
        groups = {"seen": seen, "unseen": unseen}
    systems = _systems(collection, job)
    states = QueryStates(collection, queries)
    scores: dict[str, Values] = {}
    for done, (label, system) in enumerate(systems.items()):
        observer.progress(Progress("evaluate", done, len(systems), 0.0))
        run = make_run(collection, queries, system, states=states.of(system.model))
        scores[label] = evaluate(run, qrels)
    observer.progress(Progress("evaluate", len(systems), len(systems), 0.0))
    versions = list(dict.fromkeys(system.model for system in systems.values()))
    apart = trained_apart(collection, versions, queries, states.of(UNTRAINED))
    if apart is not None:
        groups |= apart.groups
    baseline = "hybrid" if job.systems is None else next(iter(systems))
    version = job.model or collection.live_model
    if job.training is None and version == collection.live_model:
        calibrate_by_judgements(collection, version, texts, qrels)
    result = build_report(scores, baseline, groups, left_out=len(without_positives(qrels))).to_dict()
    warnings += [apart.warning if apart else None, absent_documents_warning(collection, qrels)]
    result["warning"] = "; ".join(filter(None, warnings)) or None
    if job.systems is not None and len(systems) > 1:
        result["comparison"] = _comparison(scores, groups, texts)
    return result


def _systems(collection: Collection, job: EvaluationJob) -> dict[str, System]:
    """The systems to compare, by their names in the report."""
    live = collection.live_model
    if job.systems is not None:
        named = [(system.get("model") or live, system.get("mode") or "hybrid") for system in job.systems]
        return {f"{model} {mode}": System(mode, model) for model, mode in named}  # type: ignore[arg-type]
    version = job.model or live
    systems = {"dense": System("dense"), "keyword": System("keyword"), "hybrid": System("hybrid")}
    if version != UNTRAINED:
        systems[f"trained {version}"] = System("hybrid", version)
    return systems


def _comparison(
    scores: dict[str, Values], groups: dict[str, list[str]], texts: Mapping[str, str]
) -> dict[str, Any]:
    """Wins and losses of the second system, the largest of each with the query's words."""
    first, second = list(scores)[:2]
    compared = compare_values(scores[first][MEASURE], scores[second][MEASURE], groups=groups)
    rows = [
        {"id": id, "query": texts.get(id, ""), "first": before, "second": after}
        for id, before, after in compared.queries
    ]
    moved = [row for row in rows if row["first"] != row["second"]]
    wins = [row for row in moved if row["second"] > row["first"]]
    losses = [row for row in reversed(moved) if row["second"] < row["first"]]
    return {
        "first": first,
        "second": second,
        "measure": MEASURE,
        "groups": compared.to_dict()["groups"],
        "wins": wins[:MOST_SHOWN],
        "losses": losses[:MOST_SHOWN],
    }

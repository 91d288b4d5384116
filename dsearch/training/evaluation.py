"""Score several systems of a collection on judged queries, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsearch.engine import UNTRAINED, Collection, QueryStates, System, make_run
from dsearch.engine.evaluate import absent_documents_warning, trained_apart, with_texts
from dsearch.evaluation import Values, build_report, evaluate, split_seen, without_positives
from dsearch.jobs import EvaluationJob
from dsearch.training.confidence import calibrate_by_judgements
from dsearch.training.gate.compare import compare_values
from dsearch.training.loop.observer import Observer
from dsearch.types import Progress, Query

MEASURE = "nDCG@10"  # by which single queries are won and lost
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

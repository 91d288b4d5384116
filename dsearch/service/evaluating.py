"""What an evaluation computes, in a process of its own: systems side by side on judged queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.engine import Collection, System
    from dsearch.evaluation import Values
    from dsearch.service.opening import OpenEngine
    from dsearch.service.task_jobs import Report

MEASURE = "nDCG@10"  # by which single queries are won and lost
MOST_SHOWN = 100  # wins, and losses, that a result names


def evaluate_job(
    report: Report, open_engine: OpenEngine, name: str, request: dict[str, Any]
) -> dict[str, Any]:
    """Score systems on judgements.

    Args:
        report: takes `Progress`.
        open_engine: opens the home readonly.
        name: the collection.
        request: of `EvaluateRequest`.

    Returns:
        An `EvaluationReport` as JSON; where systems were named and there are two or more, `comparison` says
        which queries the second wins and loses against the first.

    Raises:
        ModelNotFound: a system of a version that is not there.
        InvalidRequest: no judged query has a relevant document.
    """
    from dsearch.engine import QueryStates, make_run
    from dsearch.evaluation import build_report, evaluate, split_seen, without_positives
    from dsearch.service.task_jobs import be_first_to_go
    from dsearch.types import Query

    be_first_to_go()
    qrels: dict[str, dict[str, float]] = request["judgements"]
    texts = request["queries"]
    queries = [Query(id, texts[id]) for id in qrels if texts.get(id, "").strip()]
    groups: dict[str, list[str]] = {}
    if request["training"] is not None:
        seen, unseen = split_seen(qrels, request["training"])
        groups = {"seen": seen, "unseen": unseen}
    with open_engine() as engine:
        collection = engine.collection(name)
        systems = _systems(collection, request)
        states = QueryStates(collection, queries)
        scores: dict[str, Values] = {}
        for done, (label, system) in enumerate(systems.items()):
            report(Progress("evaluate", done, len(systems), 0.0))
            run = make_run(collection, queries, system, states=states.of(system.model))
            scores[label] = evaluate(run, qrels)
    report(Progress("evaluate", len(systems), len(systems), 0.0))
    baseline = "hybrid" if request["systems"] is None else next(iter(systems))
    result = build_report(scores, baseline, groups, left_out=len(without_positives(qrels))).to_dict()
    if request["systems"] is not None and len(systems) > 1:
        result["comparison"] = _comparison(scores, groups, texts)
    return result


def _systems(collection: Collection, request: dict[str, Any]) -> dict[str, System]:
    """What to compare, by the name that it has in the report."""
    from dsearch.engine import UNTRAINED, System

    live = collection.live_model
    if request["systems"] is not None:
        given = [(one["model"] or live, one["mode"]) for one in request["systems"]]
        return {f"{model} {mode}": System(mode, model) for model, mode in given}
    version = request["model"] or live
    systems = {"dense": System("dense"), "keyword": System("keyword"), "hybrid": System("hybrid")}
    if version != UNTRAINED:
        systems[f"trained {version}"] = System("hybrid", version)
    return systems


def _comparison(
    scores: dict[str, Values], groups: dict[str, list[str]], texts: dict[str, str]
) -> dict[str, Any]:
    """Wins and losses of the second system, the largest of each with the query's words."""
    from dsearch.training import compare_values

    first, second = list(scores)[:2]
    found = compare_values(scores[first][MEASURE], scores[second][MEASURE], groups=groups)
    rows = [
        {"id": id, "query": texts[id], "first": before, "second": after}
        for id, before, after in found.queries
    ]
    moved = [row for row in rows if row["first"] != row["second"]]
    wins = [row for row in moved if row["second"] > row["first"]]
    losses = [row for row in reversed(moved) if row["second"] < row["first"]]
    return {
        "first": first,
        "second": second,
        "measure": MEASURE,
        "groups": found.to_dict()["groups"],
        "wins": wins[:MOST_SHOWN],
        "losses": losses[:MOST_SHOWN],
    }

"""What tasks compute, in a process of their own (`run_spawned`).

It opens the home readonly and writes what it made into a folder, from which the serving process takes it.

What an evaluation computes, in a process of its own: systems side by side on judged queries.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsearch.errors import DsearchError
from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.attention.head import Head
    from dsearch.engine import Collection, System
    from dsearch.evaluation import Values
    from dsearch.service.tasks.readonly import OpenEngine
    from dsearch.training import (
        Epoch,
        Examples,
        FullOptions,
        Gate,
        Trained,
        TrainedValues,
        TrainingOptions,
        ValueExamples,
        ValueOptions,
    )


_OPTIONS = (
    "scope",
    "objective",
    "heads",
    "query_side",
    "epochs",
    "learning_rate",
    "encoder_learning_rate",
    "negatives",
    "seed",
)
_OF_FULL = ("epochs", "learning_rate", "encoder_learning_rate", "encoder_method", "negatives", "seed")

Report = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Note:
    """Something to tell beside progress: `kind` names the event."""

    kind: str
    data: dict[str, Any]


def train_job(
    report: Report, open_engine: OpenEngine, name: str, request: dict[str, Any], folder: Path, device: str
) -> dict[str, Any]:
    """Train a head into `folder`; what is known of it.

    Args:
        report: takes `Progress` and `Note`.
        open_engine: opens the home readonly.
        name: the collection.
        request: of `TrainRequest`.
        folder: the run's; one that a stopped attempt left is gone on with.
        device: where the arithmetic runs.

    Raises:
        DsearchError: whatever training raises on purpose.
    """
    be_first_to_go()
    from dsearch.service.tasks.results import write_made
    from dsearch.training import Gate, starting_version

    with open_engine() as engine:
        collection = engine.collection(name)
        parent = starting_version(collection)
        gate = Gate(alpha=request["alpha"], margin=request["margin"])
        trained, left_out = _trained(report, collection, parent, gate, request, folder, device)
    return {
        "parent": parent,
        "record": trained.record,
        "passed": trained.gate.passed,
        "reason": trained.gate.reason,
        "left_out": left_out,
        "made": write_made(folder, trained),
    }


def tune_job(
    report: Report, open_engine: OpenEngine, name: str, request: dict[str, Any], folder: Path, device: str
) -> dict[str, Any]:
    """Tune a search into `folder`; what is known of it. Arguments and errors as those of `train_job`."""
    be_first_to_go()
    from dsearch.engine import UNTRAINED
    from dsearch.service.tasks.results import write_made
    from dsearch.training import Gate, examples_from_judgements, tune

    started = time.monotonic()
    with open_engine() as engine:
        collection = engine.collection(name)
        examples = examples_from_judgements(
            collection, request["queries"], request["judgements"], request["exclude"]
        )
        tuned = tune(
            examples,
            gate=Gate(alpha=request["alpha"], margin=request["margin"]),
            seed=request["seed"],
            on_setting=lambda done, of: report(Progress("settings", done, of, time.monotonic() - started)),
        )
    return {
        "parent": UNTRAINED,
        "record": tuned.record,
        "passed": tuned.gate.passed,
        "reason": tuned.gate.reason,
        "left_out": examples.left_out,
        "made": write_made(folder, tuned),
    }


def prepare_job(report: Report, open_engine: OpenEngine, name: str) -> dict[str, Any]:
    """Encode a collection anew by the engine's next encoder, beside the one that answers: `Prepared`.

    An attempt that was stopped left its edition, and this goes on with it.
    """
    be_first_to_go()
    with open_engine() as engine:
        prepared = engine.prepare_migration(name, report)
    return {"sequence": prepared.sequence, "encoded": prepared.encoded}


def _trained(
    report: Report,
    collection: Collection,
    parent: str,
    gate: Gate,
    request: dict[str, Any],
    folder: Path,
    device: str,
) -> tuple[Trained | TrainedValues, dict[str, int]]:
    from dsearch.training import (
        TrainingOptions,
        examples_from_corpus,
        examples_from_feedback,
        examples_from_judgements,
        finetune,
        finetune_from_feedback,
        query_options,
        self_supervised_options,
        unanswerable_queries,
        with_null_slot,
    )

    chosen = {name: request[name] for name in _OPTIONS if request.get(name) is not None}
    if request.get("encoder_training") is not None:
        chosen["encoder_method"] = request["encoder_training"]
    if not request.get("tune", True):  # a task of before this was asked has none
        chosen["tune"] = False
    start = collection.head(parent)
    watch = _Watch(report)
    judged = None
    if request["judgements"] is not None:
        judged = examples_from_judgements(collection, request["queries"], request["judgements"])
    if request["objective"] == "value":
        return _trained_on_values(report, collection, start, gate, request, folder, device, judged)
    if request["scope"] == "full":
        assert judged is not None
        return _trained_in_full(
            report, collection, start, gate, judged, chosen, folder, watch
        ), judged.left_out
    if request["from"] == "feedback":
        source = examples_from_feedback(collection)
        live = collection.head(collection.live_model)
        trained = finetune_from_feedback(
            source,
            judged,
            TrainingOptions(**chosen),
            gate=gate,
            start=start,
            live=live,
            device=device,
            on_epoch=watch.epoch,
        )
        return trained, source.examples.left_out
    if request["self_supervised"]:
        examples = examples_from_corpus(collection, seed=request["seed"])
        options = self_supervised_options(**chosen)
    else:
        assert judged is not None
        examples = judged
        options = query_options(**chosen) if request["scope"] == "query" else TrainingOptions(**chosen)
    trained = finetune(
        examples,
        options,
        gate=gate,
        start=start,
        encoder=collection.encoder if options.scope == "query" else None,
        device=device,
        on_headroom=lambda room: report(Note("headroom", room.to_dict())),
        on_epoch=watch.epoch,
        run=_run(folder, examples, options),
    )
    if request.get("null_slot") and request["judgements"] is not None:
        unanswerable = unanswerable_queries(request["queries"], request["judgements"])
        trained, _ = with_null_slot(
            trained, examples, options, list(unanswerable.values()), collection.encoder, device=device
        )
    return trained, examples.left_out


def _trained_in_full(
    report: Report,
    collection: Collection,
    start: Head,
    gate: Gate,
    examples: Examples,
    chosen: dict[str, Any],
    folder: Path,
    watch: _Watch,
) -> Trained:
    from dsearch.training import FullOptions, finetune_full

    options = FullOptions(**{name: chosen[name] for name in _OF_FULL if name in chosen})

    def encoded(said: Progress) -> None:  # the steps of training are told epoch by epoch
        if said.stage == "encode":
            report(said)

    return finetune_full(
        collection,
        examples,
        options,
        gate=gate,
        start=start,
        on_headroom=lambda room: report(Note("headroom", room.to_dict())),
        on_epoch=watch.epoch,
        on_progress=encoded,
        run=_run(folder, examples, options),
    )


def _trained_on_values(
    report: Report,
    collection: Collection,
    start: Head,
    gate: Gate,
    request: dict[str, Any],
    folder: Path,
    device: str,
    judged: Examples | None,
) -> tuple[TrainedValues, dict[str, int]]:
    from dsearch.training import ValueOptions, finetune_values, value_examples

    names = ("heads", "query_side", "epochs", "learning_rate", "seed")
    options = ValueOptions(**{name: request[name] for name in names if request.get(name) is not None})
    examples = value_examples(collection, request["field"])
    trained = finetune_values(
        examples,
        options,
        gate=gate,
        start=start,
        judged=judged,
        device=device,
        on_epoch=_Watch(report).epoch,
        run=_run(folder, examples, options),
    )
    return trained, examples.left_out


def _run(
    folder: Path,
    examples: Examples | ValueExamples,
    options: TrainingOptions | ValueOptions | FullOptions,
) -> Any:
    """The run's folder, gone on with where the same run lies there; begun anew where another does."""
    import shutil
    from dataclasses import asdict

    from dsearch.training import RunFolder

    snapshot = examples.snapshot
    described = {
        "data_sha256": examples.digest,
        "generation": snapshot.generation.number,
        "sequence": snapshot.sequence,
        "options": asdict(options),
    }
    path = folder / "run"
    if path.exists():
        with contextlib.suppress(DsearchError):
            return RunFolder(path, described, resume=True)
        shutil.rmtree(path)
    return RunFolder(path, described)


class _Watch:
    """Epochs as progress and as figures."""

    def __init__(self, report: Report):
        self._report = report

    def epoch(self, stage: str, epoch: Epoch) -> None:
        """Tell of an epoch."""
        self._report(Progress(stage, epoch.number, epoch.of, epoch.elapsed_s))
        figures = {
            "stage": stage,
            "epoch": epoch.number,
            "loss": epoch.loss,
            "retention": epoch.retention,
            "ndcg_at_10_before": epoch.before,
            "ndcg_at_10": epoch.after,
        }
        self._report(Note("metric", figures))


def be_first_to_go() -> None:
    """When the machine's memory is short, this process is ended rather than the one that serves (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


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
    from dsearch.service.tasks.jobs import be_first_to_go
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

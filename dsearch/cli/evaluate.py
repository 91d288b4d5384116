"""`dsearch evaluate`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.judgements import Judgements, read_judgements
from dsearch.cli.session import opened_engine, print_json, say

if TYPE_CHECKING:
    from dsearch.engine import Collection
    from dsearch.evaluation import EvaluationReport, Run

TRAINED = "trained"


def evaluate(
    data: options.BeirData,
    collection: options.CollectionName = "default",
    split: Annotated[str, typer.Option(help="Judgements to score against: qrels/SPLIT.tsv.")] = "test",
    exclude: options.ExcludePairs = None,
    folds: Annotated[
        Path | None,
        typer.Option(help="JSON of query → fold: a head is trained without each fold and scored on it."),
    ] = None,
    model: options.ModelVersion = None,
    hops: options.Hops = None,
    hop_strength: options.HopStrength = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Score dense, keyword, hybrid and trained search side by side, seen and unseen documents apart."""
    judged = read_judgements(data, split, exclude)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, _):
        from dsearch.engine.answerable import judged_answerability

        target = engine.collection(collection)
        report = compare(target, judged, folds=folds, model=model, hops=hops, hop_strength=hop_strength)
        texts = {query.id: query.text for query in judged.queries}
        told = judged_answerability(target, texts, judged.qrels, model=model)
    if json:
        print_json({**report.to_dict(), "answerability": None if told is None else told.to_dict()})
        return
    typer.echo(report.to_text())
    if told is not None:
        typer.echo(told.to_text())
    if judged.training is None and folds is None:
        say("seen and unseen documents are not told apart: this data has no split named train")


def compare(
    collection: Collection,
    judged: Judgements,
    *,
    folds: Path | None = None,
    model: str | None = None,
    hops: int | None = None,
    hop_strength: float | None = None,
    dense_trained: bool = False,
) -> EvaluationReport:
    """The four systems on the same queries. Differences are to the untrained hybrid search.

    `dense_trained` adds the trained head without keywords, to be held against the untrained dense search.
    """
    from dsearch.engine import UNTRAINED, QueryStates, System, make_run
    from dsearch.evaluation import build_report, split_seen, without_pairs, without_positives
    from dsearch.evaluation import evaluate as score

    states = QueryStates(collection, judged.queries)

    def ranked(system: System) -> Run:
        known = states.of(system.model)
        return make_run(collection, judged.queries, system, states=known, exclude=judged.exclude)

    runs = {
        "dense": ranked(System("dense")),
        "keyword": ranked(System("keyword")),
        "hybrid": ranked(System("hybrid")),
    }
    if hops is not None and hops > 1:
        runs[f"hybrid, {hops} hops"] = ranked(System("hybrid", hops=hops, hop_strength=hop_strength))
    version = collection.live_model if model is None else model
    groups = {}
    if folds is not None:
        runs[TRAINED], groups = _cross_validated(collection, judged, folds)
    else:
        if version != UNTRAINED:
            runs[f"{TRAINED} {version}"] = ranked(System("hybrid", version, hops, hop_strength))
            plain = collection.head(version)
            if plain.overlay is not None:
                plain = copy.deepcopy(plain)
                plain.overlay = None
                runs[f"{version} without overlay"] = make_run(
                    collection,
                    judged.queries,
                    System("hybrid", version, hops, hop_strength),
                    states=states.of(version),
                    head=plain,
                    exclude=judged.exclude,
                )
            if dense_trained:
                runs[f"dense {version}"] = ranked(System("dense", version, hops, hop_strength))
        if judged.training is not None:
            seen, unseen = split_seen(judged.qrels, judged.training)
            groups = {"seen": seen, "unseen": unseen}
    systems = {name: score(run, judged.qrels, exclude=judged.exclude) for name, run in runs.items()}
    left_out = len(without_positives(without_pairs(judged.qrels, judged.exclude)))
    return build_report(systems, baseline="hybrid", groups=groups, left_out=left_out)


def _cross_validated(
    collection: Collection, judged: Judgements, folds: Path
) -> tuple[Run, dict[str, list[str]]]:
    """Every query ranked by a head that was trained without its fold; nothing is published."""
    from dsearch.engine import make_run
    from dsearch.evaluation import cross_validation, read_folds, split_seen, without_pairs
    from dsearch.training import examples_from_judgements, finetune

    texts = {query.id: query.text for query in judged.queries}
    qrels = without_pairs(judged.qrels, judged.exclude)
    run: Run = {}
    groups: dict[str, list[str]] = {"seen": [], "unseen": []}
    for fold in cross_validation(qrels, read_folds(folds)):
        say(f"fold {fold.number}: training on {len(fold.train)} queries, scoring {len(fold.test)}")
        trained = finetune(examples_from_judgements(collection, texts, fold.train, judged.exclude))
        queries = [query for query in judged.queries if query.id in fold.test]
        run |= make_run(collection, queries, head=trained.head, exclude=judged.exclude)
        for name, members in zip(groups, split_seen(fold.test, fold.train), strict=True):
            groups[name].extend(members)
    return run, groups

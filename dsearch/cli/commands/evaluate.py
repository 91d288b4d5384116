"""`dsearch evaluate`, `dsearch compare` and `dsearch run`.

A BEIR folder supplies the judged queries of a split, and the data that a model was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import ProgressBars, opened_engine, print_json, say, show_outcome
from dsearch.cli.training import HELD_BACK
from dsearch.corpus import Problems
from dsearch.errors import InvalidRequest, amount
from dsearch.evaluation import Pairs, Qrels, merged_pairs, read_pairs
from dsearch.evaluation.judged_data import read_judged_data, splits_of
from dsearch.types import Progress, Query

if TYPE_CHECKING:
    from dsearch.engine import Collection, QueryStates
    from dsearch.evaluation import EvaluationReport, Run
    from dsearch.evaluation.metrics import Values
    from dsearch.training import Regression


TRAINED = "trained"


def evaluate(
    data: options.BeirData,
    collection: options.CollectionName = "default",
    split: Annotated[str, typer.Option(help="Judgements to score against: qrels/SPLIT.tsv.")] = "test",
    exclude: options.ExcludePairs = None,
    folds: Annotated[
        Path | None,
        typer.Option(help="JSON of query → fold, for cross-validation of a trained head."),
    ] = None,
    model: options.ModelVersion = None,
    hops: options.Hops = None,
    hop_strength: options.HopStrength = None,
    save_baseline: Annotated[
        Path | None, typer.Option(help="Write nDCG@10 of each query by what answers: a file for --baseline.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="What --save-baseline wrote, to compare with what answers now.")
    ] = None,
    fail_if_worse: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Exit code 3 if nDCG@10 falls by more than that, significantly."),
    ] = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Score dense, keyword, hybrid and trained search side by side, seen and unseen documents apart.

    With --baseline and --fail-if-worse it is a gate for continuous integration: exit code 3 if what answers
    now is worse than the baseline by the gate's own test.
    """
    if fail_if_worse is not None and baseline is None:
        raise InvalidRequest("--fail-if-worse compares with a baseline; give --baseline FILE as well")
    judged = read_judgements(data, split, exclude)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, _):
        from dsearch.engine.evaluate import absent_documents_warning, judged_answerability

        target = engine.collection(collection)
        if (warning := absent_documents_warning(target, judged.qrels)) is not None:
            say(f"warning: {warning}")
        systems: dict[str, Values] = {}
        report = compare_systems(
            target, judged, folds=folds, model=model, hops=hops, hop_strength=hop_strength, values=systems
        )
        texts = {query.id: query.text for query in judged.queries}
        evidence = judged_answerability(target, texts, judged.qrels, model=model)
        calibration = None
        if judged.training is None and folds is None and not judged.exclude:
            from dsearch.training.confidence import calibrate_by_judgements

            version = target.live_model if model is None else model
            calibration = calibrate_by_judgements(target, version, texts, judged.qrels)
    regression = _against(baseline, save_baseline, systems, fail_if_worse or 0.0)
    if json:
        answerability = None if evidence is None else evidence.to_dict()
        compared = {} if regression is None else {"regression": regression.to_dict()}
        print_json({**report.to_dict(), "answerability": answerability, **compared})
    else:
        typer.echo(report.to_text())
        if evidence is not None:
            typer.echo(evidence.to_text())
        if regression is not None:
            typer.echo(f"{'worse than' if regression.worse else 'against'} the baseline: {regression.reason}")
    if regression is not None and regression.worse and fail_if_worse is not None:
        raise typer.Exit(HELD_BACK)
    if json:
        return
    if calibration is not None:
        say(
            f"from now on answers say how likely their first hit is right, by {calibration.queries} of these "
            "queries"
        )
    if judged.training is None and folds is None:
        say("seen and unseen documents are not told apart: this data has no split named train")


def _against(
    baseline: Path | None, save: Path | None, systems: Mapping[str, Values], tolerated: float
) -> Regression | None:
    """Compare with a baseline where one is named, and write the next one."""
    from dsearch.training import Baseline, judge_regression

    now = Baseline.of(systems)
    regression = None
    if baseline is not None:
        regression = judge_regression(Baseline.read(baseline), now, tolerated=tolerated)
    if save is not None:
        now.write(save)
    return regression


def compare_systems(
    collection: Collection,
    judged: Judgements,
    *,
    folds: Path | None = None,
    model: str | None = None,
    hops: int | None = None,
    hop_strength: float | None = None,
    dense_trained: bool = False,
    values: dict[str, Values] | None = None,
) -> EvaluationReport:
    """The four systems on the same queries. Differences are to the untrained hybrid search.

    `dense_trained` adds the trained head without keywords, to be held against the untrained dense search.
    `values` receives the values of each system, query by query.
    """
    from dsearch.engine import UNTRAINED, QueryStates, System, make_run
    from dsearch.evaluation import build_report, split_seen, without_pairs, without_positives
    from dsearch.evaluation import evaluate as score

    states = QueryStates(collection, judged.queries)

    def ranked(system: System) -> Run:
        trained_queries = states.of(system.model)
        return make_run(collection, judged.queries, system, states=trained_queries, exclude=judged.exclude)

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
            if dense_trained:
                runs[f"dense {version}"] = ranked(System("dense", version, hops, hop_strength))
        if judged.training is not None:
            seen, unseen = split_seen(judged.qrels, judged.training)
            groups = {"seen": seen, "unseen": unseen}
        groups |= training_apart(collection, judged, states, [version])
    systems = {name: score(run, judged.qrels, exclude=judged.exclude) for name, run in runs.items()}
    if values is not None:
        values |= systems
    left_out = len(without_positives(without_pairs(judged.qrels, judged.exclude)))
    return build_report(systems, baseline="hybrid", groups=groups, left_out=left_out)


def training_apart(
    collection: Collection, judged: Judgements, states: QueryStates, versions: Sequence[str]
) -> dict[str, list[str]]:
    """Return queries that a version was trained on and the others, as groups, and warn; {} without any."""
    from dsearch.engine import UNTRAINED
    from dsearch.engine.evaluate import trained_apart

    apart = trained_apart(collection, versions, judged.queries, states.of(UNTRAINED))
    if apart is None:
        return {}
    say(f"warning: {apart.warning}")
    return apart.groups


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
        say(f"fold {fold.number}: training on {amount(len(fold.train), 'query')}, scoring {len(fold.test)}")
        trained = finetune(examples_from_judgements(collection, texts, fold.train, judged.exclude))
        queries = [query for query in judged.queries if query.id in fold.test]
        run |= make_run(collection, queries, head=trained.head, exclude=judged.exclude)
        for name, members in zip(groups, split_seen(fold.test, fold.train), strict=True):
            groups[name].extend(members)
    return run, groups


def compare(
    first: Annotated[str, typer.Argument(help="Version of a model, such as v0.")],
    second: Annotated[str, typer.Argument(help="Version to compare with, such as v3.")],
    data: options.BeirData,
    collection: options.CollectionName = "default",
    split: Annotated[str, typer.Option(help="Judgements to compare on: qrels/SPLIT.tsv.")] = "test",
    exclude: options.ExcludePairs = None,
    measure: Annotated[str, typer.Option(help="nDCG@10, Recall@100, RR@10, AP, …")] = "nDCG@10",
    mode: options.SearchMode = "hybrid",
    show: Annotated[int, typer.Option(help="Number of the largest wins and losses to show.", min=0)] = 5,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Two models query by query: wins, losses, and whether the difference is more than chance."""
    judged = read_judgements(data, split, exclude)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, _):
        from dsearch.engine import QueryStates, System, make_run
        from dsearch.evaluation import evaluate, split_seen
        from dsearch.training import compare_values

        target = engine.collection(collection)
        states = QueryStates(target, judged.queries)
        values = []
        for version in (first, second):
            system = System(mode, version)  # type: ignore[arg-type]  # the layer says what is allowed
            trained_queries = states.of(version)
            run = make_run(target, judged.queries, system, states=trained_queries, exclude=judged.exclude)
            values.append(evaluate(run, judged.qrels, [measure], exclude=judged.exclude)[measure])
        groups: dict[str, list[str]] = {}
        if judged.training is not None:
            seen, unseen = split_seen(judged.qrels, judged.training)
            groups = {"seen": seen, "unseen": unseen}
        groups |= training_apart(target, judged, states, [first, second])
        comparison = compare_values(*values, groups=groups)
    texts = {query.id: query.text for query in judged.queries}
    if json:
        print_json({"first": first, "second": second, "measure": measure, **comparison.to_dict()})
        return
    typer.echo(comparison.to_text(first, second, measure, texts, show=show))


@dataclass(frozen=True, slots=True)
class Judgements:
    """Queries with judgements.

    Attributes:
        queries: those that are judged in this split.
        qrels: of this split.
        training: the judgements of split "train" when this is another one and there is one, else None.
        exclude: pairs that are left out of rankings and scores.
    """

    queries: list[Query]
    qrels: Qrels
    training: Qrels | None
    exclude: Pairs


def read_judgements(data: Path, split: str, exclude: Path | None = None) -> Judgements:
    """Read a split; says what of it could not be read, and which judged queries have no text.

    Raises:
        InvalidSource: a file is missing or malformed; file and line are named.
        InvalidRequest: no judged query has a text.
    """
    from dsearch.engine.evaluate import with_texts

    problems = Problems()
    judged = read_judged_data(data, split, problems)
    if problems.count:
        say(
            f"left out: {amount(problems.count, 'line')} of queries or judgements, such as "
            f"{problems.first[0]}"
        )
    texts = {query.id: query.text for query in judged.queries}
    qrels = with_texts(merged_pairs(judged.pairs), texts, lambda warning: say(f"warning: {warning}"))
    training = None
    if split != "train" and "train" in splits_of(data):
        training = merged_pairs(read_judged_data(data, "train", Problems()).pairs)
    return Judgements(
        queries=[query for query in judged.queries if query.id in qrels],
        qrels=qrels,
        training=training,
        exclude=read_pairs(exclude) if exclude else {},
    )


def run(
    queries: Annotated[Path, typer.Option(help="queries.jsonl: one JSON object a line with _id and text.")],
    out: Annotated[Path, typer.Option(help="The TREC run file to write.")],
    collection: options.CollectionName = "default",
    depth: Annotated[int, typer.Option("-k", help="Documents per query.", min=1, max=10_000)] = 100,
    mode: options.SearchMode = "hybrid",
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
    """Rank the collection for a file of queries and write a TREC run, for any evaluator."""
    import time

    from dsearch.corpus import Problems, read_queries
    from dsearch.evaluation import write_trec

    queries_text = read_queries(queries, Problems())
    started = time.monotonic()
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, _):
        from dsearch.engine import System, make_run

        target = engine.collection(collection)
        version = target.live_model if model is None else model
        system = System(mode, version, hops, hop_strength)  # type: ignore[arg-type]
        with ProgressBars() as on_progress:
            ranked = make_run(
                target,
                queries_text,
                system,
                depth=depth,
                on_progress=lambda done: on_progress(
                    Progress("search", done, len(queries_text), time.monotonic() - started)
                ),
            )
    write_trec(ranked, out, tag=f"dsearch-{mode}-{version}")
    text = (
        f"{out}: {amount(len(ranked), 'query')}, up to {amount(depth, 'document')} each, mode {mode}, "
        f"model {version}"
    )
    content = {"file": str(out), "queries": len(ranked), "depth": depth, "mode": mode, "model": version}
    show_outcome(text, content, json=json)

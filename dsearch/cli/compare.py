"""`dsearch compare`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.judgements import read_judgements
from dsearch.cli.session import opened_engine, print_json


def compare(
    first: Annotated[str, typer.Argument(help="A model's version, such as v0.")],
    second: Annotated[str, typer.Argument(help="Another, such as v3.")],
    data: options.BeirData,
    collection: options.CollectionName = "default",
    split: Annotated[str, typer.Option(help="Judgements to compare on: qrels/SPLIT.tsv.")] = "test",
    exclude: options.ExcludePairs = None,
    measure: Annotated[str, typer.Option(help="nDCG@10, Recall@100, RR@10, AP, …")] = "nDCG@10",
    mode: options.SearchMode = "hybrid",
    show: Annotated[int, typer.Option(help="How many of the largest wins and losses are shown.", min=0)] = 5,
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
            known = states.of(version)
            run = make_run(target, judged.queries, system, states=known, exclude=judged.exclude)
            values.append(evaluate(run, judged.qrels, [measure], exclude=judged.exclude)[measure])
        groups: dict[str, list[str]] = {}
        if judged.training is not None:
            seen, unseen = split_seen(judged.qrels, judged.training)
            groups = {"seen": seen, "unseen": unseen}
        found = compare_values(*values, groups=groups)
    texts = {query.id: query.text for query in judged.queries}
    if json:
        print_json({"first": first, "second": second, "measure": measure, **found.to_dict()})
        return
    typer.echo(found.to_text(first, second, measure, texts, show=show))

"""`dsearch attend` and `dsearch predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.attention_options import AttentionOptions
from dsearch.cli import options
from dsearch.cli.attention_output import draw_weights, show_attention, show_prediction
from dsearch.cli.declared_options import with_options_of
from dsearch.cli.output import check_picture
from dsearch.cli.session import opened_engine, print_json, say

Queries = Annotated[list[str], typer.Argument(help="The queries; quotes and signs are ordinary characters.")]
Shown = Annotated[
    int, typer.Option("--limit", "-k", min=1, max=1000, help="Documents of largest weight to show a query.")
]
Heatmap = Annotated[
    Path | None,
    typer.Option(
        "--heatmap", help="Draw the attention of the queries over the documents: a .png, .svg or .pdf."
    ),
]


@with_options_of(AttentionOptions)
def attend(
    queries: Queries,
    collection: options.CollectionName = "default",
    filter: options.FilterText = None,
    limit: Shown = 10,
    certify: Annotated[
        int | None,
        typer.Option("--certify", min=1, help="First places to certify as those of scoring every document."),
    ] = None,
    heatmap: Heatmap = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
    **chosen: Any,
) -> None:
    """Attend to a collection: the weight of each document for each query."""
    if heatmap is not None:
        check_picture(heatmap)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, _):
        from dsearch.engine import GradientQuery, LayerOptions, attention_parts

        model = chosen.pop("model")
        query = GradientQuery(
            texts=queries, model=model, filter=options.filter_of(filter), options=LayerOptions(**chosen)
        )
        answer = attention_parts(engine.collection(collection), query, include={"parts"}, certify=certify)
    if heatmap is not None and answer.head_weights is not None:
        rows = [
            dict(zip(ids[:limit], heads.T.tolist(), strict=False))
            for ids, heads in zip(answer.ids, answer.head_weights[..., :limit], strict=True)
        ]
        draw_weights(queries, rows, heatmap)
        say(f"{heatmap}: attention, queries by documents")
    if json:
        from dsearch.service.batching.attend import attended_json

        print_json(attended_json(answer))
    else:
        show_attention(queries, answer, limit)


@with_options_of(AttentionOptions)
def predict(
    queries: Queries,
    field: Annotated[
        str,
        typer.Option(
            "--field",
            help="A number, string or boolean of the metadata by its dotted path, or value.",
        ),
    ],
    collection: options.CollectionName = "default",
    filter: options.FilterText = None,
    limit: Shown = 10,
    heatmap: Heatmap = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
    **chosen: Any,
) -> None:
    """Predict a field of the documents, pooled by attention."""
    if heatmap is not None:
        check_picture(heatmap)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, _):
        answer = engine.collection(collection).predict(
            queries, field=field, evidence=limit, filter=options.filter_of(filter), **chosen
        )
    if heatmap is not None:
        rows = [
            {document.id: [document.weight] for document in prediction.evidence}
            for prediction in answer.predictions
        ]
        draw_weights(queries, rows, heatmap)
        say(f"{heatmap}: attention, queries by documents")
    if json:
        from dsearch.service.batching.search import predicted_json

        print_json(predicted_json(answer))
    else:
        show_prediction(queries, field, answer)

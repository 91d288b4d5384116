"""`dsearch attend` and `dsearch predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.attention_options import AttentionOptions
from dsearch.cli import options
from dsearch.cli.attention_output import draw_weights, show_attention, show_prediction
from dsearch.cli.declared_options import with_options_of
from dsearch.cli.engine import local_engine
from dsearch.cli.output import check_picture
from dsearch.cli.session import print_json, say
from dsearch.errors import InvalidRequest

Queries = Annotated[
    list[str] | None, typer.Argument(help="The queries; quotes and signs are ordinary characters.")
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", help="Id of a document whose embedding is a query, in place of texts; repeatable."),
]
Among = Annotated[
    list[str] | None,
    typer.Option("--among", help="Id of a document to attend to, all if not given; repeatable."),
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", help="Id of a document to leave out; repeatable.")
]
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
    queries: Queries = None,
    ids: Ids = None,
    vectors: options.Vectors = None,
    among: Among = None,
    exclude: Exclude = None,
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
    """Attend to a collection: the weight of each document for each query."""
    states = options.vectors_of(vectors)
    names = _named(queries, ids, states)
    if heatmap is not None:
        check_picture(heatmap)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    selected: Any = {"filter": options.filter_of(filter), "among": among, "exclude": exclude or []}
    with local_engine(home, own, readonly=True) as engine:
        answer = engine.attend(
            collection,
            queries or None,
            vectors=states,
            ids=ids or None,
            include=["parts"],
            **selected,
            **chosen,
        )
    if heatmap is not None and answer.head_weights is not None:
        rows = [
            dict(zip(line[:limit], heads.T.tolist(), strict=False))
            for line, heads in zip(answer.ids, answer.head_weights[..., :limit], strict=True)
        ]
        draw_weights(names, rows, heatmap)
        say(f"{heatmap}: attention, queries by documents")
    if json:
        from dsearch.service.searching import attended_json

        print_json(attended_json(answer))
    else:
        show_attention(names, answer, limit)


@with_options_of(AttentionOptions)
def predict(
    field: Annotated[
        str,
        typer.Option(
            "--field",
            help="A number, string or boolean of the metadata by its dotted path, or value.",
        ),
    ],
    queries: Queries = None,
    ids: Ids = None,
    vectors: options.Vectors = None,
    among: Among = None,
    exclude: Exclude = None,
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
    states = options.vectors_of(vectors)
    names = _named(queries, ids, states)
    if heatmap is not None:
        check_picture(heatmap)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    selected: Any = {"filter": options.filter_of(filter), "among": among, "exclude": exclude or []}
    with local_engine(home, own, readonly=True) as engine:
        answer = engine.predict(
            collection,
            queries or None,
            vectors=states,
            ids=ids or None,
            field=field,
            evidence=limit,
            **selected,
            **chosen,
        )
    if heatmap is not None:
        rows = [
            {document.id: [document.weight] for document in prediction.evidence}
            for prediction in answer.predictions
        ]
        draw_weights(names, rows, heatmap)
        say(f"{heatmap}: attention, queries by documents")
    if json:
        from dsearch.service.searching import predicted_json

        print_json(predicted_json(answer))
    else:
        show_prediction(names, field, answer)


def _named(queries: list[str] | None, ids: list[str] | None, vectors: list[list[float]] | None) -> list[str]:
    """Return the queries, or the ids or numbers of vectors in their place.

    Raises:
        InvalidRequest: not one of the three.
    """
    ways = {"queries": queries, "--id": ids, "--vectors": vectors}
    chosen = [name for name, way in ways.items() if way]
    if len(chosen) != 1:
        raise InvalidRequest(
            f"{' and '.join(chosen) or 'neither a query nor --id nor --vectors'}; give one of the three"
        )
    if vectors:
        return [f"vector {number}" for number in range(len(vectors))]
    return list(queries or ids or [])

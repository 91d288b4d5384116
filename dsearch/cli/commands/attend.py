"""`dsearch attend` and `dsearch predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.attention_options import AttentionOptions
from dsearch.cli import options
from dsearch.cli.engine import local_engine
from dsearch.cli.options import with_options_of
from dsearch.cli.output import BAR, check_picture, save_picture, shortened
from dsearch.cli.session import print_json, say
from dsearch.errors import InvalidRequest, amount
from dsearch.results import Attention, FieldPrediction, Predictions
from dsearch.types import Stamp

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


def show_attention(queries: Sequence[str], attention: Attention, limit: int) -> None:
    """The weights on stdout, what they come from on stderr."""
    for at, (query, ids) in enumerate(zip(queries, attention.ids, strict=True)):
        if len(queries) > 1:
            typer.echo(query)
        for id, weight in zip(ids[:limit], attention.weights[at].tolist(), strict=False):
            typer.echo(_line(id, weight))
        if not ids:
            typer.echo("     nothing is in reach")
        counts = attention.candidates or []
        shares = [] if attention.covered_mass is None else attention.covered_mass.tolist()
        if counts and shares:
            say(
                f"{min(limit, len(ids))} of {amount(counts[at], 'candidate')}, {shares[at]:.1%} of the "
                "attention"
            )
    _tell(attention.note, attention.stamp)


def show_prediction(queries: Sequence[str], field: str, predictions: Predictions) -> None:
    """The predictions and their evidence on stdout, what they come from on stderr."""
    for query, answer in zip(queries, predictions.predictions, strict=True):
        if len(queries) > 1:
            typer.echo(query)
        typer.echo(f"{field} {_predicted(answer)}")
        for document in answer.evidence:
            typer.echo(f"{_line(document.id, document.weight)}  {document.value}")
        say(
            f"from {amount(answer.candidates, 'document')}, {answer.without_field} without {field}; "
            f"{answer.covered_mass:.1%} of the attention"
        )
    _tell(predictions.note, predictions.stamp)


def draw_weights(queries: Sequence[str], rows: Sequence[Mapping[str, Sequence[float]]], path: Path) -> None:
    """Draw queries × documents, a panel a head.

    Args:
        queries: their texts.
        rows: for each query, documents with their weight by each head, the largest first.
        path: picture to write.

    Raises:
        InvalidRequest: no query has a document, or the file cannot be written.
    """
    from dsearch.plot import heatmap

    ids = list(dict.fromkeys(id for row in rows for id in row))
    if not ids:
        raise InvalidRequest("no document is in reach, so there is no attention to draw")
    heads = len(next(iter(next(row for row in rows if row).values())))
    nothing = [0.0] * heads
    weights = [[[row.get(id, nothing)[head] for id in ids] for row in rows] for head in range(heads)]
    figure = heatmap(
        weights,  # [heads, queries, documents]
        titles=None if heads == 1 else [f"head {head}" for head in range(heads)],
        query_label="query",
        key_label="document",
        query_names=[shortened(query) for query in queries],
        key_names=[shortened(id) for id in ids],
        panel_size=(1.5 + 0.35 * len(ids), 2.6 + 0.35 * len(queries)),
    )
    save_picture(figure, path)


def _line(id: str, weight: float) -> str:
    return f"     {weight:6.1%} {'█' * round(weight * BAR):<{BAR}} {id}"


def _predicted(answer: FieldPrediction) -> str:
    if answer.labels is not None:
        return ", ".join(f"{label} {share:.1%}" for label, share in list(answer.labels.items())[:5])
    if answer.kind == "number":
        return f"≈ {answer.mean:.6g} ± {answer.spread:.3g}"
    if isinstance(answer.mean, list):
        return f"≈ [{', '.join(f'{number:.4g}' for number in answer.mean)}]"
    return "is not predicted: no document in reach has it"


def _tell(note: str | None, stamp: Stamp) -> None:
    say(f"generation {stamp.generation}, model {stamp.model}")
    if note is not None:
        say(note.replace("over='all'", "--over all").replace("more candidates", "more --candidates"))

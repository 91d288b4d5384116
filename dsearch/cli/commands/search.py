"""`dsearch search` and `dsearch similar`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.output import as_json, check_picture, draw, show
from dsearch.cli.session import opened_engine, print_json, say

Limit = Annotated[int, typer.Option("-k", "--limit", help="Maximum number of hits, 1 to 1000.")]
Offset = Annotated[int, typer.Option("--offset", help="Number of hits to skip.")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", help="Cursor that the previous page printed; replaces --offset.")
]
Explain = Annotated[bool, typer.Option("--explain", help="Show the parts of every score.")]
Highlight = Annotated[
    bool, typer.Option("--highlight", help="Show fragments with the query's words, bold in a terminal.")
]
ScoreThreshold = Annotated[
    float | None, typer.Option("--score-threshold", help="Omit hits of a lower score.")
]
WeightThreshold = Annotated[
    float | None, typer.Option("--weight-threshold", help="Omit hits of a lower weight.")
]


def search(
    query: Annotated[
        str,
        typer.Argument(help='The query. "Phrases" and +terms must occur, -terms (after --) must not.'),
    ],
    collection: options.CollectionName = "default",
    limit: Limit = 10,
    offset: Offset = 0,
    cursor: Cursor = None,
    mode: options.SearchMode = "hybrid",
    model: options.ModelVersion = None,
    hops: options.Hops = None,
    hop_strength: options.HopStrength = None,
    filter: options.FilterText = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Treat quotes and signs in the query as ordinary characters.")
    ] = False,
    score_threshold: ScoreThreshold = None,
    weight_threshold: WeightThreshold = None,
    explain: Explain = False,
    highlight: Highlight = False,
    heatmap: Annotated[
        Path | None,
        typer.Option(
            "--heatmap", help="Draw the attention of each head over the hits: a .png, .svg or .pdf."
        ),
    ] = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Search a collection."""
    if heatmap is not None:
        check_picture(heatmap)
    condition = options.filter_of(filter)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, _):
        result = engine.collection(collection).search(
            query,
            limit=limit,
            offset=offset,
            cursor=cursor,
            mode=mode,  # type: ignore[typeddict-item]  # the layer says what is allowed
            model=model,
            hops=hops,
            hop_strength=hop_strength,
            filter=condition,
            operators=not plain,
            score_threshold=score_threshold,
            weight_threshold=weight_threshold,
            explain=explain or heatmap is not None,
            highlight=highlight,
        )
    if heatmap is not None:
        draw(result, heatmap)
        say(f"{heatmap}: attention, heads by hits")
        if not explain:
            result = replace(result, hits=[replace(hit, explain=None) for hit in result.hits])
    if json:
        print_json(as_json(result))
    else:
        show(result)


def similar(
    like: Annotated[list[str], typer.Argument(help="Ids of documents to find more of.")],
    unlike: Annotated[
        list[str] | None, typer.Option("--unlike", help="Id of an unwanted example; repeatable.")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="Query text to combine with the examples.")
    ] = None,
    collection: options.CollectionName = "default",
    limit: Limit = 10,
    offset: Offset = 0,
    cursor: Cursor = None,
    model: options.ModelVersion = None,
    filter: options.FilterText = None,
    score_threshold: ScoreThreshold = None,
    weight_threshold: WeightThreshold = None,
    explain: Explain = False,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Find the documents most like some, and least like others."""
    condition = options.filter_of(filter)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, _):
        result = engine.collection(collection).similar(
            like,
            unlike=unlike or (),
            query=query,
            limit=limit,
            offset=offset,
            cursor=cursor,
            model=model,
            filter=condition,
            score_threshold=score_threshold,
            weight_threshold=weight_threshold,
            explain=explain,
            highlight=query is not None,
        )
    if json:
        print_json(as_json(result))
    else:
        show(result)

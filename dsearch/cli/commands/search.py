"""`dsearch search` and `dsearch similar`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.engine import reading
from dsearch.cli.options import with_options_of
from dsearch.cli.output import as_json, check_picture, draw, show
from dsearch.cli.session import print_json, say
from dsearch.search_options import SearchOptions


@with_options_of(SearchOptions)
def search(
    query: Annotated[
        str | None,
        typer.Argument(help='The query. "Phrases" and +terms must occur, -terms (after --) must not.'),
    ] = None,
    vector: options.Vector = None,
    collection: options.CollectionName = "default",
    filter: options.FilterText = None,
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
    **chosen: Any,
) -> None:
    """Search a collection."""
    if heatmap is not None:
        check_picture(heatmap)
    if query is None and vector is None:
        raise typer.BadParameter("neither a query nor --vector; give at least one", param_hint="QUERY")
    state = options.vector_of(vector)
    request = {
        **chosen,
        "filter": options.filter_of(filter),
        "explain": chosen["explain"] or heatmap is not None,
    }
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with reading(home, own) as engine:
        result = engine.search(collection, query, vector=state, **request)
        documents = 1 if result.hits else engine.collection(collection).documents
    if heatmap is not None:
        draw(result, heatmap)
        say(f"{heatmap}: attention, heads by hits")
        if not chosen["explain"]:
            result = replace(result, hits=[replace(hit, explain=None) for hit in result.hits])
    if json:
        print_json(as_json(result))
    else:
        show(result, None if documents else collection, request)


@with_options_of(
    SearchOptions, without=["operators", "highlight", "highlight_by", "stages", "rerank_candidates"]
)
def similar(
    like: Annotated[list[str], typer.Argument(help="Ids of documents to find more of.")],
    unlike: Annotated[
        list[str] | None, typer.Option("--unlike", help="Id of an unwanted example; repeatable.")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="Query text to combine with the examples.")
    ] = None,
    vector: options.Vector = None,
    collection: options.CollectionName = "default",
    filter: options.FilterText = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
    **chosen: Any,
) -> None:
    """Find the documents most like some, and least like others."""
    request = {**chosen, "filter": options.filter_of(filter), "highlight": query is not None}
    state = options.vector_of(vector)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with reading(home, own) as engine:
        result = engine.similar(collection, like, unlike=unlike or (), query=query, vector=state, **request)
    if json:
        print_json(as_json(result))
    else:
        show(result, None, request)

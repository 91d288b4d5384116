"""`dsearch search`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from dsearch.cli import options
from dsearch.cli.picture import check_picture, draw
from dsearch.cli.session import opened_engine, print_json, say
from dsearch.types import Hit, SearchResult

_SNIPPET = 160  # characters
_BAR = 20


def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    collection: options.CollectionName = "default",
    limit: Annotated[int, typer.Option("-k", "--limit", help="Hits wanted, 1 to 1000.")] = 10,
    mode: options.SearchMode = "hybrid",
    model: options.ModelVersion = None,
    hops: options.Hops = None,
    hop_strength: options.HopStrength = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the parts of every score.")] = False,
    heatmap: Annotated[
        Path | None,
        typer.Option(
            "--heatmap", help="Draw the attention of each head over the hits: a .png, .svg or .pdf."
        ),
    ] = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Search a collection."""
    if heatmap is not None:
        check_picture(heatmap)
    with opened_engine(home, readonly=True, encoder=encoder, device=device, threads=threads) as (engine, _):
        result = engine.collection(collection).search(
            query,
            limit=limit,
            mode=mode,  # type: ignore[arg-type]  # the layer says what is allowed
            model=model,
            hops=hops,
            hop_strength=hop_strength,
            explain=explain or heatmap is not None,
        )
    if heatmap is not None:
        draw(result, heatmap)
        say(f"{heatmap}: attention, heads by hits")
        if not explain:
            result = replace(result, hits=[replace(hit, explain=None) for hit in result.hits])
    if json:
        print_json(as_json(result))
        return
    for hit in result.hits:
        typer.echo(_line(hit))
    spread, stamp = result.attention, result.stamp
    covered = "" if spread.covered_mass is None else f", {spread.covered_mass:.1%} of the exact attention"
    say(
        f"{len(result.hits)} of {spread.candidates} candidates{covered}; entropy {spread.entropy:.2f} nats; "
        f"generation {stamp.generation}, model {stamp.model}; {result.took_ms:.0f} ms"
    )


def as_json(result: SearchResult) -> dict[str, object]:
    """A result in the shape that the HTTP API gives it."""
    content = asdict(result)
    stamp = content.pop("stamp")
    return {**stamp, **content}


def _line(hit: Hit) -> str:
    bar = "█" * round(hit.weight * _BAR)
    text = " ".join(hit.text.split())
    snippet = text if len(text) <= _SNIPPET else f"{text[:_SNIPPET]}…"
    title = hit.title if hit.title != hit.id else ""
    lines = [f"{hit.rank:>3}. {hit.weight:6.1%} {bar:<{_BAR}} {hit.id}  {title}".rstrip()]
    if hit.explain is not None:
        heads = zip(hit.explain.dense, hit.explain.keyword, hit.explain.head_weights, strict=True)
        for number, (dense, keyword, weight) in enumerate(heads):
            lines.append(
                f"     score {hit.score:.4f} = dense {dense:.4f} + keyword {keyword:.4f}"
                if len(hit.explain.dense) == 1
                else f"     head {number}: dense {dense:.4f}, keyword {keyword:.4f}, weight {weight:.1%}"
            )
    lines.append(f"     {snippet}")
    return "\n".join(lines)

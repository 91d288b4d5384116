"""`dsearch run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import ProgressBars, opened_engine
from dsearch.types import Progress


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
) -> None:
    """Rank the collection for a file of queries and write a TREC run, for any evaluator."""
    import time

    from dsearch.corpus import Problems, read_queries
    from dsearch.evaluation import write_trec

    asked = read_queries(queries, Problems())
    started = time.monotonic()
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, _):
        from dsearch.engine import System, make_run

        target = engine.collection(collection)
        version = target.live_model if model is None else model
        system = System(mode, version, hops, hop_strength)  # type: ignore[arg-type]
        with ProgressBars("queries") as on_progress:
            ranked = make_run(
                target,
                asked,
                system,
                depth=depth,
                on_progress=lambda done: on_progress(
                    Progress("search", done, len(asked), time.monotonic() - started)
                ),
            )
    write_trec(ranked, out, tag=f"dsearch-{mode}-{version}")
    typer.echo(f"{out}: {len(ranked)} queries, up to {depth} documents each, mode {mode}, model {version}")

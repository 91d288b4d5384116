"""`dsearch migrate`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import ProgressBars, opened_engine, print_json


def migrate(
    encoder: Annotated[
        str, typer.Option("--encoder", help="The new encoder: a sentence-transformers model, or its folder.")
    ],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Encode a collection anew, beside the old one, and put it in its place. Interrupted, run it again.

    Trained models stay behind: they fit the old encoder alone.
    """
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=False, **own) as (engine, _), ProgressBars() as on_progress:
        done = engine.migrate(collection, on_progress=on_progress)
    if json:
        print_json(
            {
                "documents": done.documents,
                "encoded": done.encoded,
                "models_left_behind": done.models,
                "folder": done.folder.name,
                "elapsed_s": done.elapsed_s,
            }
        )
        return
    left = f"; models {', '.join(done.models)} stayed behind" if done.models else ""
    typer.echo(
        f"{collection}: {done.documents} documents, {done.encoded} encoded by {encoder} in "
        f"{done.elapsed_s:.1f} s{left}. From now on give --encoder {encoder}, or set it in dsearch.toml"
    )

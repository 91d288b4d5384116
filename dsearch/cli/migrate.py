"""`dsearch migrate`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.by_server import ended_task, server_of
from dsearch.cli.session import ProgressBars, opened_engine, print_json
from dsearch.errors import HomeLocked


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

    Trained models stay behind: they fit the old encoder alone. While a server runs, its setting next_encoder
    has to name the new one.
    """
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    try:
        with opened_engine(home, readonly=False, **own) as (engine, _), ProgressBars() as on_progress:
            told = engine.migrate(collection, engine.encoder, on_progress=on_progress).to_dict()
        then = f"From now on give --encoder {encoder}, or set it in dsearch.toml"
    except HomeLocked as locked:
        with server_of(locked) as client:
            task = client.migrate(collection, encoder=encoder)  # refused where its settings have another
            told = ended_task(client, task, f"migration of {collection}")
        then = f"The server answers with it; when all collections are moved, set encoder to {encoder}"
    if json:
        print_json(told)
        return
    versions = ", ".join(told["models_left_behind"])
    left = f"; models {versions} stayed behind" if versions else ""
    typer.echo(
        f"{collection}: {told['documents']} documents, {told['encoded']} encoded by {encoder} in "
        f"{told['elapsed_s']:.1f} s{left}. {then}"
    )

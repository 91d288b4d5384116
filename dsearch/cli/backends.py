"""`dsearch backends`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from dsearch.cli import options
from dsearch.cli.session import print_json, say


def backends(
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    threads: options.Threads = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure again, though it was measured here before.")
    ] = False,
    json: options.AsJson = False,
) -> None:
    """Measure what can run the encoder here, once; what is fastest runs it from then on.

    Left out is what gives other embeddings than torch. Give --backend torch to a command to have torch all
    the same.
    """
    from dsearch.config import load_settings

    settings = load_settings(home=home, encoder=encoder, threads=threads)
    from dsearch.threads import set_threads

    set_threads(settings.threads)
    from dsearch.encoder import CACHE_NAME, Backend, choice_of

    cache = settings.home / CACHE_NAME
    known = None if measure else choice_of(settings.encoder, cache, dtype=settings.dtype)
    if known is None:
        known = choice_of(settings.encoder, cache, dtype=settings.dtype, measure=True, tell=say)
        assert known is not None  # measured
    if json:
        print_json(asdict(known))
        return
    for one in known.measured:
        chosen = "  ← runs the encoder" if Backend(one.name, one.dtype) == known.backend else ""
        rates = f"{one.queries_per_s:8.1f} queries/s {one.documents_per_s:8.1f} documents/s"
        typer.echo(f"{one.name:<9} {one.dtype:<9} {one.problem or rates}{chosen}")
    if len(known.measured) == 1:
        say("for faster ones: pip install 'dsearch[onnx,openvino]', then dsearch backends --measure")

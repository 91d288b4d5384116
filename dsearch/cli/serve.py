"""`dsearch serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from dsearch.cli import options
from dsearch.cli.session import opened_engine, say


def serve(
    home: options.HomeFolder = None,
    host: Annotated[str | None, typer.Option(help="Address to bind to [default: 127.0.0.1].")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to bind to, 0 for a free one [default: 8080].", min=0, max=65535)
    ] = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    threads: options.Threads = None,
) -> None:
    """Serve the collections over HTTP, with the page at / and the API's description at /docs."""
    from dsearch.config import load_settings

    settings = load_settings(host=host, port=port)
    with opened_engine(home, readonly=False, encoder=encoder, device=device, threads=threads) as (engine, _):
        serve_engine(engine, settings.host, settings.port)


def serve_engine(engine: object, host: str, port: int) -> None:
    """Serve until interrupted."""
    import uvicorn

    from dsearch.service import create_app

    app = create_app(engine)  # type: ignore[arg-type]
    say(f"serving at http://{host}:{port}  (the API is described at /docs; stop with Ctrl-C)")
    uvicorn.run(app, host=host, port=port, log_level="warning", server_header=False)

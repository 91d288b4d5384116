"""`dsearch serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsearch.cli import options
from dsearch.cli.session import opened_engine, say

if TYPE_CHECKING:
    from dsearch.engine import SearchEngine


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


def serve_engine(engine: SearchEngine, host: str, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C: requests in flight are answered first, and stopping is no error."""
    import signal

    import uvicorn

    from dsearch.service import create_app

    # uvicorn raises the signal that stopped it once more when all is done; with these it ends there.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: None)
    say(f"serving at http://{host}:{port}  (the API is described at /docs; stop with Ctrl-C)")
    uvicorn.run(
        create_app(engine),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,  # it would write queries down
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=10,
        limit_concurrency=1024,  # above the service's own queue, which answers with a problem and Retry-After
    )

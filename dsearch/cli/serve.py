"""`dsearch serve`."""

from __future__ import annotations

import ipaddress
import socket
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import opened_engine, say
from dsearch.errors import InvalidRequest

if TYPE_CHECKING:
    from dsearch.config import Settings
    from dsearch.engine import SearchEngine


def serve(
    home: options.HomeFolder = None,
    host: Annotated[str | None, typer.Option(help="Address to bind to [default: 127.0.0.1].")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to bind to, 0 for a free one [default: 8080].", min=0, max=65535)
    ] = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Let a Ray cluster serve: HOST:PORT of its head node, or auto (extra ray)."),
    ] = None,
) -> None:
    """Serve the collections over HTTP, with the page at / and the API's description at /docs."""
    from dsearch.config import load_settings

    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    settings = load_settings(home=home, host=host, port=port, **own)
    if ray is not None:
        from dsearch.cli.cluster import serve_on_ray
        from dsearch.service.guard import LOOPBACK_HOSTS

        hosts = (*LOOPBACK_HOSTS, settings.host, *_listed(settings.hosts))
        serve_on_ray(ray, settings, hosts=hosts, require_key=not is_loopback(settings.host))
        return
    with opened_engine(home, readonly=False, rebuild=True, **own) as (engine, _):
        serve_engine(engine, settings)


def serve_engine(engine: SearchEngine, settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C: requests in flight are answered first, and stopping is no error.

    Raises:
        InvalidRequest: an address that other machines reach, and no API key.
    """
    from dsearch.service import create_app
    from dsearch.service.guard import LOOPBACK_HOSTS
    from dsearch.service.keys import ApiKeys
    from dsearch.service.logs import set_up_logs
    from dsearch.service.opening import open_readonly
    from dsearch.service.server import run_server

    elsewhere = not is_loopback(settings.host)
    if elsewhere and not ApiKeys(engine.home.path).list():
        raise InvalidRequest(
            f"host={settings.host} can be reached from other machines, and there is no API key; make one "
            "with: dsearch keys create --name NAME --scope read, or bind to 127.0.0.1"
        )
    set_up_logs(settings.log_level, settings.log_format)
    app = create_app(
        engine,
        hosts=(*LOOPBACK_HOSTS, settings.host, *_listed(settings.hosts)),
        origins=_listed(settings.origins),
        require_key=elsewhere,
        query_timeout_s=settings.query_timeout_ms / 1000,
        explore=settings.explore,
        open_engine=partial(
            open_readonly,
            settings.home,
            settings.encoder,
            settings.device,
            settings.dtype,
            # What auto stands for is measured by the server; its tasks take what it found.
            None if settings.backend == "auto" else settings.backend,
            settings.next_encoder,
        ),
        migrates_to=settings.next_encoder or settings.encoder,
        task_memory_bytes=settings.task_memory_bytes,
        device=settings.device,
    )
    with bound(settings.host, settings.port) as listening:
        port = listening.getsockname()[1]
        address = f"[{settings.host}]:{port}" if ":" in settings.host else f"{settings.host}:{port}"
        engine.home.announce(f"http://{'127.0.0.1' if settings.host == '0.0.0.0' else settings.host}:{port}")
        say(f"serving at http://{address}  (the API is described at /docs; stop with Ctrl-C)")
        run_server(app, sockets=[listening])


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        InvalidRequest: the address is in use, or none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InvalidRequest(
            f"cannot listen at {host}:{port} ({error}); use another --port (0 for a free one) or --host"
        ) from error


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]

"""What keeps running: `dsearch serve`, `dsearch mcp`, and `dsearch cluster start | status | stop` on Ray."""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import command_line, opened_engine, print_json, reopening, say, show_outcome
from dsearch.errors import Command, InvalidRequest, amount

if TYPE_CHECKING:
    from dsearch.config import Settings
    from dsearch.engine import Collection, SearchEngine
    from dsearch.engine.indexing.ingest import Ingestion, OnProgress
    from dsearch.store import Store
    from dsearch.types import Document


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
        from dsearch.service.guard import LOOPBACK_HOSTS

        hosts = (*LOOPBACK_HOSTS, in_url(settings.host), *options.names_in(settings.hosts))
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
    from dsearch.service.server import run_server
    from dsearch.service.telemetry import set_up_logs

    elsewhere = not is_loopback(settings.host)
    if elsewhere and not ApiKeys(engine.home.path).list():
        raise InvalidRequest(
            f"host={settings.host} can be reached from other machines, and there is no API key; bind to "
            "127.0.0.1, or make one",
            hint=Command("keys create", ("--name", "NAME", "--scope", "read")),
        )
    set_up_logs(settings.log_level, settings.log_format)
    app = create_app(
        engine,
        hosts=(*LOOPBACK_HOSTS, in_url(settings.host), *options.names_in(settings.hosts)),
        origins=options.names_in(settings.origins),
        require_key=elsewhere,
        query_timeout_s=settings.query_timeout_ms / 1000,
        explore=settings.explore,
        open_engine=reopening(settings),
        migrates_to=settings.next_encoder or settings.encoder,
        rerankers=options.names_in(settings.rerankers),
        model_upload_bytes=settings.model_upload_bytes,
        task_memory_bytes=settings.task_memory_bytes,
        device=settings.device,
    )
    with bound(settings.host, settings.port) as listening:
        port = listening.getsockname()[1]
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        engine.home.announce(f"http://{in_url(here)}:{port}")
        address = f"{in_url(settings.host)}:{port}"
        say(f"serving at http://{address}  (the API is described at /docs; stop with Ctrl-C)")
        run_server(app, sockets=[listening])


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        InvalidRequest: the address is in use, or none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only on sockets that name their protocol. Otherwise the body of an
    # answer waits up to 40 ms for the client's acknowledgement of its headers.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(2048)
        return listening
    except OSError as error:
        listening.close()
        raise InvalidRequest(
            f"cannot listen at {host}:{port} ({error}); use another --port (0 for a free one) or --host"
        ) from error


def in_url(host: str) -> str:
    """A host as addresses and Host headers have it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return True if an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


cluster = typer.Typer(
    help="Put collections on the machines of a Ray cluster (extra ray); see dsearch guide scaling.",
    no_args_is_help=True,
)

Address = Annotated[
    str,
    typer.Option("--ray", help="Head node of the cluster, HOST:PORT, or auto for the one on this machine."),
]


@cluster.command()
def start(
    collection: options.CollectionName,
    home: options.HomeFolder = None,
    shards: Annotated[int, typer.Option(help="Number of shards.", min=1)] = 1,
    replicas: Annotated[int, typer.Option(help="Copies of each shard.", min=1)] = 1,
    ray: Address = "auto",
    at: Annotated[
        str | None,
        typer.Option(help="Location of shards for all machines, such as s3://bucket/folder."),
    ] = None,
    cache: Annotated[Path, typer.Option(help="Folder on every machine for copies of shards.")] = Path.home()
    / ".cache"
    / "dsearch"
    / "shards",
    cpus: Annotated[
        float | None,
        typer.Option(help="Logical CPUs of a copy [default: 1, or less if fewer are free].", min=0.0),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Split the live generation of a collection, start its shards, and let them answer.

    Where no Ray runs and --ray is auto or of this machine, one is started, for this machine alone. Called
    again after `dsearch refresh` it exchanges what answers, all shards at once, and removes old releases and
    their copies at other places.
    """
    from dsearch.cluster.connection import ray_module
    from dsearch.cluster.coordinator import coordinator, outcome
    from dsearch.cluster.transfer import below, send
    from dsearch.engine.indexing.leases import Lease
    from dsearch.engine.indexing.releases import mark_published, mark_sent

    ray_module()
    with opened_engine(home, readonly=True) as (engine, _):
        opened = engine.collection(collection)
        release, folder = _split(opened, shards)
        with ExitStack() as until_published:  # retention keeps it
            until_published.callback(Lease(folder).release)
            ray = _joined_or_started(ray)
            uri = str(folder.resolve())
            if at is not None:
                uri = below(at, collection, folder.name)
                say(f"sending {amount(len(release.shards), 'shard')} to {uri}")
                mark_sent(opened.store, folder, uri)
                send(folder, uri)
            say(f"starting {amount(len(release.shards), 'shard')}, {replicas} of each")
            live: dict[str, Any] = outcome(
                coordinator(start=True).publish.remote(uri, replicas, str(cache.expanduser().resolve()), cpus)
            )
            mark_published(folder)
        _remove_replaced(opened.store, uri)
    if as_json:
        print_json(live)
    else:
        print(
            f"{collection}: generation {release.generation} with {amount(release.documents, 'document')} "
            "answers from "
            f"{amount(len(release.shards), 'shard')}; serve it with: {command_line('serve', '--ray', ray)}"
        )


@cluster.command()
def status(ray: Address = "auto", as_json: options.AsJson = False) -> None:
    """Show the shards of each collection and the replicas that do not respond."""
    from dsearch.cluster.connection import connect
    from dsearch.cluster.coordinator import LiveRelease, coordinator, copies_up, outcome

    connect(ray)
    live_shards = outcome(coordinator().live.remote())
    report: list[dict[str, Any]] = []
    for name, described in sorted(live_shards.items()):
        live = LiveRelease(**described)
        report.append(
            {
                "collection": name,
                "generation": live.generation,
                "release": live.uri,
                "digest": live.digest,
                "copies": copies_up(live),
            }
        )
    if as_json:
        print_json(report)
        return
    if not report:
        print("no collection answers here; publish one with: dsearch cluster start -c NAME")
    for shard in report:
        print(f"{shard['collection']}: generation {shard['generation']}, {shard['release']}")
        for number, copies in enumerate(shard["copies"]):
            up = sum(copies)
            print(f"  shard {number}: {up} of {len(copies)} copies answer{'' if up else '  (lost)'}")


@cluster.command()
def stop(ray: Address = "auto", json: options.AsJson = False) -> None:
    """Stop serving and every shard, and Ray too where `dsearch cluster start` started it; documents stay."""
    from dsearch.cluster.connection import connect, stop_head
    from dsearch.cluster.coordinator import stop_all
    from dsearch.errors import Unavailable

    connect(ray)
    try:
        stop_all()
    except Unavailable:  # nothing of ours runs in it
        if not stop_head():
            raise
        show_outcome("stopped; no collection answered there", {"stopped": True, "ray": True}, json=json)
        return
    ray_stops = stop_head()
    text = "stopped, and Ray too" if ray_stops else "stopped; Ray itself goes on: it was there before"
    show_outcome(text, {"stopped": True, "ray": ray_stops}, json=json)


def _joined_or_started(address: str) -> str:
    """Join the cluster there, or start one of this machine alone; its address."""
    from dsearch.cluster.connection import answers, connect, is_loopback, start_head
    from dsearch.errors import Unavailable

    if address == "auto":
        try:
            connect(address)
            return address
        except Unavailable:
            pass
    elif not is_loopback(address) or answers(address):
        connect(address)
        return address
    say("no Ray runs there; starting one that only this machine reaches")
    return start_head(address)


def _split(collection: Collection, shards: int) -> tuple[Any, Path]:
    """The release of the live generation, written unless it is there."""
    from dsearch.cluster.release import Release, split
    from dsearch.engine.indexing.releases import FOLDER

    generation = collection.snapshot.generation
    name = f"{generation.number:06d}-{shards}-{generation.manifest.digest[:12]}"
    folder = collection.store.path / FOLDER / name
    if collection.stale:
        say(
            "documents were written or deleted since the generation was built; they are not in the shards "
            f"until: {command_line('refresh', '-c', collection.name)}"
        )
    if folder.is_dir():
        return Release.read(folder), folder
    say(f"splitting generation {generation.number} into {shards}")
    return split(collection.store, generation, folder, shards), folder


def _remove_replaced(store: Store, uri: str) -> None:
    """Remove old releases, and the copies of all but the one that answers from `uri`."""
    from dsearch.cluster.transfer import remove
    from dsearch.engine.indexing.releases import sent_releases, tidy_releases
    from dsearch.errors import DsearchError

    tidy_releases(store)
    for sent in sent_releases(store):
        if sent.uri != uri:
            try:
                remove(sent.uri)
                shutil.rmtree(sent.folder)
            except (DsearchError, OSError) as error:
                say(f"the copy of a replaced release at {sent.uri} stays until the next publishing: {error}")


def ingest_on_ray(
    collection: Collection,
    documents: Iterable[Document],
    address: str,
    settings: Settings,
    workers: int,
    on_progress: OnProgress,
    obsolete: Callable[[], Sequence[str]] | None = None,
) -> Ingestion:
    """`Collection.ingest`, with the embeddings computed by a cluster whose machines see the home.

    Raises:
        MissingExtra, Unavailable (no cluster there), InvalidRequest (reached from elsewhere without tokens).
    """
    from dsearch.cluster.bulk import encode_on_cluster
    from dsearch.cluster.connection import connect
    from dsearch.cluster.coordinator import free_share
    from dsearch.engine.indexing.ingest import store_documents

    connect(address)
    started = time.monotonic()
    inserted, updated, unchanged = store_documents(collection.store, documents, on_progress)
    ids = [] if obsolete is None else obsolete()
    deleted = collection.delete(ids).deleted if ids else 0
    encoded = encode_on_cluster(
        collection.store,
        encoder=_encoders_elsewhere(settings),
        workers=workers,
        threads=settings.threads or 1,
        num_cpus=free_share(workers),
        on_progress=on_progress,
    )
    report = collection.ingest((), on_progress)  # what is left, and the generation
    return replace(
        report,
        inserted=inserted,
        updated=updated,
        unchanged=unchanged,
        encoded=encoded + report.encoded,
        elapsed_s=time.monotonic() - started,
        deleted=deleted,
    )


def _encoders_elsewhere(settings: Settings) -> dict[str, Any]:
    """Settings of encoders for processes that start in another folder: folders by their whole paths."""

    def whole(name: str | None) -> str | None:
        folder = None if name is None else Path(name).expanduser()
        return str(folder.resolve()) if folder is not None and folder.is_dir() else name

    return {
        "encoder": whole(settings.encoder),
        "next_encoder": whole(settings.next_encoder),
        "device": settings.device,
        "dtype": settings.dtype,
        "backend": settings.backend,
        "cache": settings.cache and str(settings.cache.resolve()),
    }


def serve_on_ray(address: str, settings: Settings, *, hosts: tuple[str, ...], require_key: bool) -> None:
    """Let a cluster serve the home until SIGTERM or Ctrl-C; its shards stay.

    Raises:
        MissingExtra, Unavailable (no cluster there), InvalidRequest (reached from elsewhere, and no key).
    """
    from dsearch.cluster.connection import connect
    from dsearch.cluster.ingress import IngressSettings, deploy, undeploy

    connect(address)
    chosen = IngressSettings(
        home=str(settings.home.resolve()),
        **_encoders_elsewhere(settings),
        threads=settings.threads or 1,
        hosts=hosts,
        origins=tuple(options.names_in(settings.origins)),
        require_key=require_key,
        query_timeout_s=settings.query_timeout_ms / 1000,
        explore=settings.explore,
        log_level=settings.log_level,
        log_format=settings.log_format,
    )
    with bound(settings.host, settings.port) as free:  # Ray Serve would not say that something else listens
        port = free.getsockname()[1]
    stopped = threading.Event()
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop_signal, lambda *_: stopped.set())
    deploy(chosen, host=settings.host, port=port)
    say(f"the cluster at {address} serves at http://{in_url(settings.host)}:{port}  (stop with Ctrl-C)")
    stopped.wait()
    undeploy()


def mcp(
    write: Annotated[bool, typer.Option("--write", help="Let the agent add documents.")] = False,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
) -> None:
    """Let an agent on this machine search the collections: MCP on stdin and stdout (extra mcp)."""
    from dsearch.service.mcp.transports import run_stdio

    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=not write, rebuild=write, **own) as (engine, settings):
        run_stdio(
            engine,
            writes=write,
            open_engine=reopening(settings),
            task_memory_bytes=settings.task_memory_bytes,
            device=settings.device,
        )

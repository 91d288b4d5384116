"""Maintenance commands.

`dsearch verify`, `recover`, `compact`, `purge`, `stats`, `alias`, `backup`, `restore`, `export` and
`migrate`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from dsearch.cli import options
from dsearch.cli.engine import finished, in_process, reading, writing
from dsearch.cli.output import tell_prompts
from dsearch.cli.session import ProgressBars, error_text, opened_engine, print_json, say, with_home
from dsearch.errors import DsearchError, amount

if TYPE_CHECKING:
    from dsearch.encoder.load import EncoderInUse

_SHOWN = 20  # findings


def verify(
    collections: Annotated[
        list[str] | None, typer.Argument(help="Names [default: every collection].")
    ] = None,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Read everything again: each digest, each file, the index against the store. Exit code 1: damage."""
    with opened_engine(home, readonly=True) as (engine, _):
        reports = [engine.verify(name) for name in collections or engine.names()]
    if json:
        print_json([report.to_dict() for report in reports])
    for report in reports if not json else []:
        contents = f"{amount(report.documents, 'document')}, {amount(report.embeddings, 'embedding')}"
        files = f"{amount(len(report.generations), 'generation')}, {amount(len(report.models), 'model')}"
        typer.echo(f"{report.name}: {'whole' if report.ok else 'damaged'}: {contents}, {files}")
        for problem in report.problems[:_SHOWN]:
            typer.echo(f"  {error_text(problem)}")
        if len(report.problems) > _SHOWN:
            typer.echo(f"  and {len(report.problems) - _SHOWN} more")
    if not reports:
        say("no collection yet")
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def recover(
    collection: Annotated[str, typer.Argument(help="Name of the collection.")],
    home: options.HomeFolder = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Continue without lost acknowledged writes, if there is no backup."""
    with opened_engine(home, readonly=False, threads=threads) as (engine, _), ProgressBars() as on_progress:
        recovered = engine.recover(collection, on_progress)
    if json:
        print_json(asdict(recovered))
        return
    if recovered.loss is None:
        typer.echo(f"{recovered.name}: no write is missing; nothing was changed")
        return
    say(recovered.loss)
    left = amount(recovered.documents, "document")
    typer.echo(f"{recovered.name}: goes on with {left}; index again what is missing")


def compact(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Make the files small: one generation of what is there now, and a database without free space."""
    report = _compacted(collection, home, threads)
    if json:
        print_json(report)
        return
    typer.echo(
        f"{collection}: {report['bytes_before']:,} bytes before, {report['bytes_after']:,} now, "
        f"generation {report['generation']}"
    )
    if not report["complete"]:
        say(_left(report))


def purge(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Make what was deleted or replaced unreadable: it is then in no file. Exit code 1: something is left."""
    report = _compacted(collection, home, threads)
    if json:
        print_json(report)
    elif report["complete"]:
        typer.echo(
            f"{collection}: {amount(report['rows'], 'deleted row is', 'deleted rows are')} gone from every "
            "file"
        )
    else:
        say(
            f"{collection}: {amount(report['rows'], 'deleted row is', 'deleted rows are')} gone, but "
            f"{_left(report)}"
        )
    if not report["complete"]:
        raise typer.Exit(1)


def stats(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Count what a collection holds and costs: documents, delta, generations, encoder, keys, bytes."""
    with reading(home) as engine:
        counted, every = engine.statistics(collection), engine.aliases()
        local = in_process(engine)
        if local is not None and local.engine.collection(collection).has_encoder:
            with suppress(DsearchError):  # no weights here, and everything else can be counted
                counted["encoder"] = asdict(_encoder_in_use(home))
    aliases = [alias for alias, name in every.items() if name == counted["name"]]
    counted.pop("rebuild")  # builds start by themselves in a server alone
    if json:
        print_json({**counted, "aliases": aliases})
        return
    delta, keys = counted["delta"], counted["keys"]
    each = f", {counted['bytes_per_document']:,} a document" if counted["documents"] else ""
    lines = {
        "documents": f"{counted['documents']}, {counted['pending']} pending, {counted['deleted']} deleted",
        "delta": f"{delta['documents']} since the last build, {delta['share']:.1%} of it",
        "keys": described_keys(keys) or "not recorded: built by an older release",
        "bytes": f"{counted['bytes']:,}{each}",
        "model": f"{counted['model']} of {counted['models']} trained",
    }
    if (encoder := counted["encoder"]) is not None:
        why = "" if encoder["note"] is None else f" ({encoder['note']})"
        lines["encoder"] = f"{encoder['name']} by {encoder['runs_by']}{why}"
        if encoder["prompts"] is not None:
            lines["prompts"] = encoder["prompts"]
    if aliases:
        lines["aliases"] = ", ".join(aliases)
    for name, line in lines.items():
        typer.echo(f"{name:<12}{line}")
    if counted["model_problem"] is not None:
        typer.echo(counted["model_problem"])
    for generation in counted["generations"]:
        live = ", live" if generation["live"] else ""
        typer.echo(
            f"generation  {generation['number']}: {amount(generation['documents'], 'document')}, "
            f"{generation['bytes']:,} bytes{live}"
        )


def described_keys(keys: dict[str, Any] | None) -> str:
    """Describe the storage of keys and its measurements in a line; empty for keys of an older release."""
    if keys is None:
        return ""
    kind = keys["kind"] if keys["kind"] == keys["asked"] else f"{keys['kind']} (by {keys['asked']})"
    if keys["recall_at_10"] is None:
        return kind
    set_to = "".join(f", {name} {value}" for name, value in keys["parameters"].items())
    return (
        f"{kind}{set_to}, recall@10 {keys['recall_at_10']:.3f}, {keys['queries_per_s']:,.0f} queries/s, "
        f"{keys['bytes_per_document']:,.0f} bytes a document"
    )


def _encoder_in_use(home: Path | None, name: str | None = None) -> EncoderInUse:
    """The encoder of the settings, or one of this name."""
    from dsearch.config import load_settings
    from dsearch.encoder import EncoderSource

    return EncoderSource.of(load_settings(home=home), name=name).in_use()


def _compacted(collection: str, home: Path | None, threads: int | None) -> dict[str, Any]:
    """`Compaction` as JSON, with `complete`."""
    with writing(home, {"threads": threads}) as engine:
        return finished(engine, engine.compact(collection))


def _left(report: dict[str, Any]) -> str:
    leftovers = ", ".join(map(str, report["held"]))
    if leftovers:
        return f"generation {leftovers} is read by another process; end that, and run this again"
    if report["models"]:
        versions = ", ".join(report["models"])
        return f"model {versions} has an index of its own with some of them; delete it, or train again"
    if report["releases"]:
        return with_home(report["note"], "cluster start")
    if report["kept"]:
        return f"{report['kept']} are needed by a generation; run this again"
    return "the database's log is read by another process; end that, and run this again"


def alias(
    name: Annotated[str | None, typer.Argument(help="The alias.")] = None,
    collection: Annotated[
        str | None, typer.Argument(help="The collection that it names from now on.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias; the collection stays.")] = False,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Give a collection a second name, or let that name stand for another one at once. Alone: list them."""
    from dsearch.errors import InvalidRequest

    if (name is None) != (collection is None and not remove) or (remove and collection is not None):
        raise InvalidRequest("use: dsearch alias, dsearch alias NAME COLLECTION, dsearch alias NAME --remove")
    with reading(home) if name is None else writing(home) as engine:
        if name is not None and collection is not None:
            engine.set_alias(name, collection)
        elif name is not None:
            engine.drop_alias(name)
        aliases = engine.aliases()
    if json:
        print_json(aliases)
        return
    for alias_name, target in sorted(aliases.items()):
        typer.echo(f"{alias_name}: {target}")
    if not aliases:
        say("no alias")


def backup(
    to: Annotated[Path, typer.Argument(help="Folder to create; it must not exist.")],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Copy a collection with its models and its feedback, while others write and search."""
    with opened_engine(home, readonly=True) as (engine, _), _writing_to(to):
        report = engine.backup(collection, to)
    if json:
        print_json(asdict(report))
        return
    index = f"generation {report.generation}" if report.generation else "no generation (it will be built)"
    typer.echo(
        f"{to}: {amount(report.documents, 'document')} as of operation {report.sequence}, {index}, "
        f"{amount(len(report.models), 'model')}, {report.size_bytes:,} bytes"
    )


def restore(
    source: Annotated[Path, typer.Argument(help="The folder of a backup.")],
    home: options.HomeFolder = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Make a collection of a backup, under its name; every digest is checked before it appears."""
    stays = (
        "no request may name a folder of its machine: end it, restore, and start it again; or restore "
        f"into a home of its own, which another server can serve: dsearch restore {source} --home FOLDER"
    )
    with (
        opened_engine(home, readonly=False, stays=stays, threads=threads) as (engine, _),
        ProgressBars() as on_progress,
    ):
        described = engine.restore(source, on_progress).describe()
    if json:
        print_json(described)
        return
    typer.echo(
        f"{described.name}: {amount(described.documents, 'document')}, generation {described.generation}, "
        f"model {described.model}"
    )


def export(
    collection: options.CollectionName = "default",
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write [default: standard output].")
    ] = None,
    beir: Annotated[Path | None, typer.Option(help="Folder to write in BEIR's layout.")] = None,
    filter: options.FilterText = None,
    home: options.HomeFolder = None,
) -> None:
    """Write the documents as JSON lines, which `dsearch index` reads."""
    from dsearch.errors import InvalidRequest

    if to is not None and beir is not None:
        raise InvalidRequest("--out and --beir; give one of the two")
    condition = options.filter_of(filter)
    with opened_engine(home, readonly=True) as (engine, _), _writing_to(beir or to or "standard output"):
        from dsearch.engine.maintenance.backup import export_beir, export_lines

        store = engine.collection(collection).store
        if beir is not None:
            count = export_beir(store, beir, condition)
        elif to is not None:
            with _put_in_place(to) as file:
                count = export_lines(store, file.write, condition)
        else:
            count = export_lines(store, sys.stdout.buffer.write, condition)
            sys.stdout.buffer.flush()
    say(amount(count, "document"))


@contextmanager
def _put_in_place(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of another one when it is whole: an earlier export stays until then."""
    if path.exists() and not path.is_file():  # a pipe or a device
        with path.open("wb") as stream:
            yield stream
        return
    path = path.resolve()  # of a link, what it leads to
    part = path.parent / f".export-{os.getpid()}.part"
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _writing_to(place: Path | str) -> Iterator[None]:
    """Say what cannot be written instead of showing where in the code that was noticed."""
    from dsearch.errors import InvalidRequest

    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidRequest(f"{place} cannot be written ({error}); give another place") from error


def migrate(
    encoder: Annotated[
        str, typer.Option("--encoder", help="The new encoder: a sentence-transformers model, or its folder.")
    ],
    collection: options.CollectionName = "default",
    language: Annotated[
        str | None,
        typer.Option("--language", help="New language of keyword search, or auto [default: as before]."),
    ] = None,
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
    own: dict[str, Any] = {"device": device, "backend": backend, "threads": threads}
    stays = None if language is None else "it keeps the language: end it, and run this again"
    with writing(home, own, stays=stays, next_encoder=encoder) as engine:
        if (local := in_process(engine)) is None:
            task = engine.migrate(collection, encoder=encoder)  # refused where its settings have another
            migration = finished(engine, task)
            then = f"The server answers with it; when all collections are moved, set encoder to {encoder}"
        else:
            with ProgressBars() as on_progress:
                migration = local.engine.migrate(
                    collection, language=language, on_progress=on_progress
                ).to_dict()
            then = f"From now on give --encoder {encoder}, or set it in dsearch.toml"
    with suppress(DsearchError):  # its files are gone since
        tell_prompts(_encoder_in_use(home, encoder).prompts)
    if json:
        print_json(migration)
        return
    versions = ", ".join(migration["models_left_behind"])
    left = f"; models {versions} stayed behind" if versions else ""
    if remembered := migration.get("remembered", 0):
        left += f"; {amount(remembered, 'remembered query')} kept for the next training"
    typer.echo(
        f"{collection}: {amount(migration['documents'], 'document')}, "
        f"{migration['encoded']} encoded by {encoder} in "
        f"{migration['elapsed_s']:.1f} s{left}. {then}"
    )

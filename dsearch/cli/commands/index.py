"""`dsearch index`: documents of any source into a collection, which mirrors folders."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.engine import in_process, is_there, writing
from dsearch.cli.output import tell_prompts, tell_waiting
from dsearch.cli.session import (
    ProgressBars,
    as_json,
    as_rate,
    command_line,
    print_json,
    say,
)
from dsearch.errors import DsearchError, InvalidRequest, amount
from dsearch.results import CollectionInfo, WriteResult
from dsearch.types import EmbeddedDocument, Progress

if TYPE_CHECKING:
    from dsearch.cli.engine import Engine
    from dsearch.corpus import Mirror, Problems
    from dsearch.engine import Collection
    from dsearch.engine.indexing.ingest import Ingestion
    from dsearch.types import Document


def index(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders, files (text, Markdown, HTML, PDF, Word, e-mail, source code, notebooks, CSV, "
            "JSON, JSON lines, Parquet, …), patterns of these, BEIR folders, Hugging Face datasets saved to "
            "disk, or - for standard input [default: nothing new; what an interrupted run left]."
        ),
    ] = None,
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    id_column: Annotated[str | None, typer.Option(help="Field or column of the id.")] = None,
    title_column: Annotated[str | None, typer.Option(help="Field or column of the title.")] = None,
    text_column: Annotated[str | None, typer.Option(help="Field or column of the text.")] = None,
    value_column: Annotated[
        str | None, typer.Option(help="Field or column of the value: a number or a list of numbers.")
    ] = None,
    embedding_column: Annotated[
        str | None,
        typer.Option(
            help="Field or column of an embedding of your own: a list of numbers, scaled to length 1; a new "
            "collection takes its dimension from the first."
        ),
    ] = None,
    type: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="COLUMN=text, number or boolean; repeatable [default: a CSV column whose first 1,000 cells "
            "are numbers is one, likewise booleans].",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Add only: documents whose files are gone stay.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete documents whose files are gone without asking.")
    ] = False,
    ignored: Annotated[bool, typer.Option("--ignored", help="Read what .gitignore files name, too.")] = False,
    language: options.Language = None,
    search_fields: options.SearchFields = None,
    passage_tokens: options.PassageTokens = None,
    overlap: options.Overlap = None,
    no_passages: options.NoPassages = False,
    kind: options.KeyKind = None,
    second_stage: Annotated[
        bool,
        typer.Option(
            "--second-stage",
            help="Keep the documents' tokens, from now on and of those that are there, for searches with "
            "--stages 2; without sources, of those that are there.",
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad record.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(help="Let a Ray cluster encode: HOST:PORT of its head node, or auto (extra ray)."),
    ] = None,
    workers: Annotated[int, typer.Option(help="With --ray: number of encoders in the cluster.", min=1)] = 1,
    json: options.AsJson = False,
) -> None:
    """Index documents; run again, it goes on where it stopped and encodes only what is new.

    A folder is mirrored: documents whose files are gone from it are deleted. Exit code 1: nothing could be
    indexed, or more than a tenth would be deleted and nobody was there to ask.
    """
    from dsearch.config import load_settings
    from dsearch.corpus import Problems, RecordFields, parse_types, read_sources
    from dsearch.corpus.mirror import FROM_FOLDERS, Mirror
    from dsearch.store import refusal

    problems = Problems(strict=strict, keep=20, on_problem=_Warner())
    fields = RecordFields(
        id=id_column,
        title=title_column,
        text=text_column,
        value=value_column,
        embedding=embedding_column,
        types=parse_types(type or []),
    )
    if second_stage and ray is not None:
        raise InvalidRequest(
            "--second-stage with --ray, whose workers give no token states; leave one of them out: "
            f"{command_line('index', '-c', collection, '--second-stage')} adds the tokens afterwards"
        )
    folders = Folders(problems, Mirror(), keep=keep, yes=yes)
    # A missing file is noticed here.
    documents = read_sources(
        sources or [],
        problems=problems,
        fields=fields,
        refuse=refusal,
        mirror=folders.mirror,
        ignored=ignored,
    )
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    cut = {"tokens": passage_tokens, "overlap": overlap, "none": no_passages or None}
    creation: dict[str, Any] = {
        "language": language,
        "passages": {name: value for name, value in cut.items() if value is not None} or None,
        "kind": kind,
        "dimension": None,
        "search_fields": options.field_names(search_fields),
    }
    with writing(home, own, stays=_reason_to_stay(sources, ray, second_stage=second_stage)) as engine:
        if sources and embedding_column is not None and not is_there(engine, collection):
            documents, creation["dimension"] = with_dimension(documents)
        local = in_process(engine)
        if local is None:
            folders.mirror.learn(documents_of(home, collection))
            info, written = index_by_server(engine, collection, documents, creation)
            deleted = delete_by_server(engine, collection, folders.obsolete(nullcontext))
            if deleted:
                info = engine.collection(collection)
            prompts = (engine.statistics(collection)["encoder"] or {}).get("prompts")
            refused = written.refused
            for problem in written.problems:
                say(f"refused document {problem.line}: {problem.detail}")
        else:
            if sources:
                local.create_collection(collection, **creation)
            target = local.engine.collection(collection)
            if sources:
                folders.mirror.learn(target.store.export(FROM_FOLDERS))
            bars = ProgressBars()
            with bars as on_progress:
                gone = partial(folders.obsolete, bars.paused)
                try:
                    if ray is None:
                        written = target.ingest(documents, on_progress, gone, second_stage=second_stage)
                    else:
                        from dsearch.cli.commands.serve import ingest_on_ray

                        settings = load_settings(home=home, **own)
                        written = ingest_on_ray(target, documents, ray, settings, workers, on_progress, gone)
                except KeyboardInterrupt:
                    if pending := target.store.count().pending:
                        tell_waiting(pending, collection)
                    raise
            info, deleted, refused = target.describe(), written.deleted, 0
            calibrate(target)
            prompts = (target.encoder_in_use() or {}).get("prompts")
            if not sources and not written.encoded and not second_stage:
                say("no documents were waiting: every one can be found")
        tell_prompts(prompts)
    _show(info, written, deleted, folders, refused, json=json, resumed=not sources)


def _reason_to_stay(sources: list[str] | None, ray: str | None, *, second_stage: bool) -> str | None:
    """The reason why no server does it; None where one does."""
    if second_stage:
        return "it keeps tokens only of collections that have them: end it"
    if ray is not None:
        return "it encodes the documents itself: leave out --ray, or end it first"
    if not sources:
        return (
            "it indexes what commands send it: name a file or a folder; to finish an interrupted run, end it "
            "first"
        )
    return None


def calibrate(target: Collection) -> None:
    """Estimate what answers look like that are right; without an estimate answers only lack a line."""
    from dsearch.training.confidence import calibrate_by_documents

    try:
        calibrate_by_documents(target)
    except (DsearchError, OSError) as error:
        say(f"answers do not say where nothing fits: {error}")


def _show(
    info: CollectionInfo,
    written: WriteResult | Ingestion,
    deleted: int,
    folders: Folders,
    refused: int,
    *,
    json: bool,
    resumed: bool = False,
) -> None:
    """Print the result of a run.

    Raises:
        Exit: code 1, for a run that read no document, or that deleted nothing for want of consent.
    """
    problems, read = folders.problems, written.inserted + written.updated + written.unchanged
    failed = typer.Exit(int((not read and not resumed) or folders.refused > 0))
    if json:
        skips = {
            "skipped": problems.count,
            "passed_over": dict(problems.passed_over),
            "remarks": [str(remark) for remark in problems.remarks],
        }
        folder = {"deleted": deleted, "not_deleted": folders.refused, "renamed": folders.mirror.moved}
        print_json({**asdict(info), **asdict(written), **skips, **folder})
        raise failed
    if problems.passed_over:
        say(
            f"passed over {amount(problems.passed_over.total(), 'file')} of other "
            f"kinds: {_kinds(problems.passed_over)}"
        )
    for remark in problems.remarks:
        say(f"note: {remark}")
    folders.tell(info.name)
    rate = ""
    if not isinstance(written, WriteResult):
        speed = f" ({as_rate(written.encoded / written.elapsed_s)} documents/s)" if written.encoded else ""
        rate = f", {written.encoded} encoded in {written.elapsed_s:.1f} s{speed}"
    left_out = problems.count + refused
    typer.echo(
        f"{info.name}: {amount(info.documents, 'document')}, generation {info.generation}: "
        f"{written.inserted} new, {written.updated} changed, {written.unchanged} unchanged"
        + (f", {deleted} deleted" if deleted else "")
        + (f", {left_out} skipped" if left_out else "")
        + rate
    )
    if not read and not resumed:
        say(
            "nothing was found to index; see the messages above, or dsearch index --help for what can be read"
        )
    raise failed


def _kinds(passed_over: Counter[str]) -> str:
    """For example `3 .png, 2 without suffix`: the most frequent first."""
    counts = [f"{count} {suffix or 'without suffix'}" for suffix, count in passed_over.most_common(8)]
    return ", ".join(counts) + (", …" if len(passed_over) > len(counts) else "")


class _Warner:
    """Shows the first problems and says when it stops."""

    def __init__(self, most: int = 20):
        self._left = most

    def __call__(self, problem: object) -> None:
        self._left -= 1
        if self._left >= 0:
            say(f"skipped {problem}")
        elif self._left == -1:
            say("more records were skipped; only their number follows")


UNASKED = 0.1  # share of a folder's documents that is deleted without a question
_PAGE = 1000  # documents and ids a request
_TELL_EVERY, _TELL_EVERY_S = 100, 1.0  # documents, seconds

Paused = Callable[[], AbstractContextManager[object]]


@dataclass(slots=True)
class Folders:
    """The folders of one run of `dsearch index`.

    Attributes:
        problems: of reading them.
        mirror: their documents and those of the collection.
        keep: True to delete nothing.
        yes: True to delete any number without a question.
        refused: number of documents that would have been deleted and were not.
    """

    problems: Problems
    mirror: Mirror
    keep: bool = False
    yes: bool = False
    refused: int = 0

    def obsolete(self, paused: Paused) -> list[str]:
        """Ids to delete. Above 10 % of the folders' documents it asks; without a terminal it needs `yes`.

        Args:
            paused: suspends the output of progress while it asks.
        """
        if self.keep:
            return []
        ids = self.mirror.obsolete(self.problems)
        if self.yes or len(ids) <= UNASKED * self.mirror.recorded:
            return ids
        text = (
            f"gone from the folder: {len(ids)} of {amount(self.mirror.recorded, 'document')} ({_some(ids)})"
        )
        if sys.stdin.isatty():
            with paused():
                if typer.confirm(f"{text}; delete them from the collection?", err=True):
                    return ids
            say("nothing is deleted")
        else:
            self.refused = len(ids)
            say(f"{text}: nothing is deleted; add --yes to delete them, or --keep to add only")
        return []

    def tell(self, collection: str) -> None:
        """Tell what became of renamed files, of ids that two folders share, and of folders that are gone."""
        mirror = self.mirror
        if mirror.moved:
            say(
                "1 document keeps its id under another path: its file was renamed"
                if mirror.moved == 1
                else f"{mirror.moved} documents keep their ids under other paths: their files were renamed"
            )
        if mirror.qualified:
            say(
                f"{len(mirror.qualified)} ids carry their folder's name, since another file has the plain "
                f"one: {_some(mirror.qualified)}"
            )
        for root, documents in mirror.elsewhere().items():
            command = command_line(
                "delete", "-c", collection, "--filter", as_json({"_file.root": {"eq": root}})
            )
            stay = amount(documents, "document stays", "documents stay")
            say(f"{stay} of {root}, which is gone; to delete: {command}")


def documents_of(home: Path | None, collection: str) -> Iterator[Document]:
    """Yield the documents of a collection that came from folders, from its file; none if it is not there.

    A server tells nobody the folders, and its home is at hand: the command found the server by it.
    """
    from dsearch.config import load_settings
    from dsearch.corpus.mirror import FROM_FOLDERS
    from dsearch.engine.home import Home, read_aliases
    from dsearch.store import Store

    place = Home(load_settings(home=home).home)
    name = read_aliases(place.path).get(collection, collection)
    if name in place.names():
        with closing(Store.open(place.existing(name), readonly=True)) as store:
            yield from store.export(FROM_FOLDERS)


def index_by_server(
    client: Engine, collection: str, documents: Iterable[Document], creation: dict[str, Any]
) -> tuple[CollectionInfo, WriteResult]:
    """Store documents, in a collection that is made when it is not there.

    Args:
        client: of the server.
        collection: its name.
        documents: read as they are sent.
        creation: options of a new collection, as for `Client.create_collection`.

    Raises:
        Conflict: the collection is there, with other options than these.
    """
    if not is_there(client, collection) or any(value is not None for value in creation.values()):
        client.create_collection(collection, **creation)  # one that is there stays, and says what differs
    with ProgressBars() as on_progress:
        written = client.upsert(collection, _counted(documents, on_progress))
    return client.collection(collection), written


def _counted(documents: Iterable[Document], on_progress: Callable[[Progress], None]) -> Iterator[Document]:
    """Tell the progress from the first second on, and whenever a batch was answered or some were read."""
    started = last_s = time.monotonic()
    on_progress(Progress("send", 0, 0, 0.0))
    number = 0
    for number, document in enumerate(documents, start=1):
        now_s = time.monotonic()
        if number % _TELL_EVERY == 0 or now_s - last_s >= _TELL_EVERY_S:
            last_s = now_s
            on_progress(Progress("send", number, 0, now_s - started))
        yield document
    on_progress(Progress("server", number, 0, time.monotonic() - started))


def delete_by_server(client: Engine, collection: str, ids: list[str]) -> int:
    """Delete documents by id; returns their number."""
    parts = (ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE))
    return sum(client.delete_many(collection, ids=part).deleted for part in parts)


def _some(ids: Iterable[Any]) -> str:
    listed = list(ids)
    return ", ".join(listed[:3]) + (", …" if len(listed) > 3 else "")


def with_dimension(documents: Iterator[Document]) -> tuple[Iterator[Document], int | None]:
    """Return the documents, and the length of the embedding of the first one; None if that has none.

    Call it for a new collection alone: it reads a document before the mirror has learned others.
    """
    first = next(documents, None)
    if first is None:
        return documents, None
    dimension = None
    if isinstance(first, EmbeddedDocument) and first.embedding is not None:
        dimension = len(first.embedding)
    return chain([first], documents), dimension

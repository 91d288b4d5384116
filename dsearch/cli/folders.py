"""Folders as a collection mirrors them: deletions, with consent where they are many."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsearch.cli.engine import is_there
from dsearch.cli.session import ProgressBars, as_json, say, typed
from dsearch.corpus import Mirror, Problems
from dsearch.corpus.mirror import FROM_FOLDERS
from dsearch.errors import amount
from dsearch.types import EmbeddedDocument, Progress

if TYPE_CHECKING:
    from dsearch.cli.engine import Engine
    from dsearch.results import CollectionInfo, WriteResult
    from dsearch.types import Document

UNASKED = 0.1  # share of a folder's documents that is deleted without a question
_PAGE = 1000  # documents and ids a request
_TELL_EVERY, _TELL_EVERY_S = 100, 1.0  # documents, seconds

Paused = Callable[[], AbstractContextManager[object]]


@dataclass(slots=True)
class Folders:
    """The folders of one run of `dsearch index`.

    Attributes:
        problems: of reading them.
        keep: True to delete nothing.
        yes: True to delete any number without a question.
        refused: number of documents that would have been deleted and were not.
    """

    problems: Problems
    keep: bool = False
    yes: bool = False
    refused: int = 0
    mirror: Mirror = field(default_factory=Mirror)

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
            command = typed("delete", "-c", collection, "--filter", as_json({"_file.root": {"eq": root}}))
            stay = amount(documents, "document stays", "documents stay")
            say(f"{stay} of {root}, which is gone; to delete: {command}")


def documents_of(home: Path | None, collection: str) -> Iterator[Document]:
    """Yield the documents of a collection that came from folders, from its file; none if it is not there.

    A server tells nobody the folders, and its home is at hand: the command found the server by it.
    """
    from dsearch.config import load_settings
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

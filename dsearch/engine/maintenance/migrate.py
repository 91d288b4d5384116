"""`migrate`: encode a collection with another encoder beside the live one, then replace it in one step.

The new edition grows in a hidden folder of the home, `.migrating-papers`. Documents are copied and encoded
and a generation is built, each step durable, while searches and writes of the live collection go on. Writers
then wait for the last changes to be copied, and one rename gives the folder the name `papers@2`: the newest
edition of a name is the collection (home.py). The older edition is deleted when no process reads it any more.
No two databases ever share a path, so a process that has the older edition open can continue to read it.

After a crash before the rename, the next call continues from the last durable step; after the rename, the
switch is complete. A server lets another process make the new edition (`prepare`) and only switches itself
(`switch`). Trained models are left behind, because they were trained for the other encoder's embeddings.
Remembered queries are encoded anew and stay as rows, for the next training or query memory; those of clicks
have no text, and a training from the feedback, which stays, makes them again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from dsearch.encoder import EncoderIdentity, TextEncoder
from dsearch.engine.collection import Collection
from dsearch.engine.home import DELETED, Home, require_encoder
from dsearch.engine.indexing.chunking import PassageLengths, PassageOptions
from dsearch.engine.indexing.ingest import OnProgress, build_generation, encode_pending
from dsearch.engine.indexing.leases import alone_with
from dsearch.engine.indexing.releases import carry_sent
from dsearch.engine.options import KeyOptions, language_of, search_fields_of
from dsearch.errors import Cancelled, Conflict, DsearchError
from dsearch.index import Tokenizer
from dsearch.index.durable import sync_folder
from dsearch.store import MemoryRow, Store
from dsearch.store.feedback import copy_feedback
from dsearch.types import Document, Progress

_AT_A_TIME = 1000
_SUPERSEDED = ".superseded"
_FEW = 1000  # changes that are copied while writers wait


class MigrationOptions(TypedDict):
    """Options of the next edition."""

    passages: PassageOptions | None
    language: str | None


@dataclass(frozen=True, slots=True)
class Migration:
    """Result of a migration.

    Attributes:
        documents: number of documents in the new edition.
        encoded: number of documents that this call encoded; an interrupted call may have encoded the others.
        models: versions that were left behind with the older edition.
        remembered: number of remembered queries that stay.
        encoder: name of the new encoder of all documents.
        folder: new location of the collection.
        elapsed_s: duration of this call.
    """

    documents: int
    encoded: int
    models: tuple[str, ...]
    remembered: int
    encoder: str
    folder: Path
    elapsed_s: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the folder's name in place of its path."""
        return {
            "documents": self.documents,
            "encoded": self.encoded,
            "models_left_behind": list(self.models),
            "remembered": self.remembered,
            "encoder": self.encoder,
            "folder": self.folder.name,
            "elapsed_s": round(self.elapsed_s, 2),
        }


@dataclass(frozen=True, slots=True)
class PreparedMigration:
    """A next edition ready for the switch.

    Attributes:
        sequence: last operation of the source that it contains.
        encoded: number of documents encoded, by this call and earlier ones.
        started: start time by the monotonic clock.
    """

    sequence: int
    encoded: int
    started: float = field(default_factory=time.monotonic)


def migrating_folder(home: Home, name: str) -> Path:
    """Return the folder in which the next edition of a collection is prepared."""
    return home.path / f".migrating-{name}"


def migrate(
    home: Home,
    source: Collection,
    encoder: TextEncoder,
    *,
    passages: PassageOptions | None = None,
    language: str | None = None,
    on_progress: OnProgress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Migration:
    """Encode a collection with another encoder and replace the old one; see `SearchEngine.migrate`."""
    prepared = PreparedMigration(0, 0)
    options: MigrationOptions = {"passages": passages, "language": language}
    while True:
        more = prepare(home, source.store, encoder, on_progress=on_progress, cancelled=cancelled, **options)
        prepared = PreparedMigration(more.sequence, prepared.encoded + more.encoded, prepared.started)
        if (done := switch(home, source, encoder, prepared, passages=passages)) is not None:
            return done


def prepare(
    home: Home,
    source: Store,
    encoder: TextEncoder,
    *,
    passages: PassageOptions | None = None,
    language: str | None = None,
    on_progress: OnProgress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> PreparedMigration:
    """Prepare the next edition while writers of the present one continue.

    The source is only read, so another process than the writer can do this.
    """
    require_encoder(source)
    present = EncoderIdentity.from_dict(source.encoder)
    if present.name == encoder.identity.name and present.same(encoder.identity):
        raise Conflict(
            f"collection {source.name!r} is encoded by {encoder.identity.name} already; give another"
        )
    started = time.monotonic()
    language = language_of(source) if language is None else language
    Tokenizer.for_language(language)  # refuses an unknown one before anything is encoded
    target = _target(migrating_folder(home, source.name), source, encoder, passages)

    def checked(progress: Progress) -> None:
        if cancelled is not None and cancelled():
            raise Cancelled(f"the migration of {source.name!r} was cancelled; called again it goes on")
        if on_progress is not None:
            on_progress(progress)

    with target:
        seen = _copy_all(source, target, checked)
        encoded = encode_pending(target, encoder, checked)
        keys = KeyOptions.of(source)
        if _to_be_built(target, keys, language):
            build_generation(
                target,
                keys=keys,
                language=language,
                search_fields=search_fields_of(source),
                on_progress=checked,
            )
        while (copied := _copy_changes(source, target, seen, most=_FEW)) is None:
            seen = _copy_all(source, target, checked)
            encoded += encode_pending(target, encoder, checked)
        _copy_remembered(source, target, encoder)
    return PreparedMigration(copied, encoded, started)


def switch(
    home: Home,
    source: Collection,
    encoder: TextEncoder,
    prepared: PreparedMigration,
    *,
    passages: PassageOptions | None = None,
) -> Migration | None:
    """Replace the present edition by the prepared one; writers wait for the last changes.

    Returns None if there are too many of them; nothing was changed, and it must be prepared again.
    """
    with _target(migrating_folder(home, source.name), source.store, encoder, passages) as target:
        if target.live_generation() is None:
            return None  # the prepared edition was incomplete; start again
        seen = _copy_changes(source.store, target, prepared.sequence, most=_FEW)
        if seen is None:
            return None
        encoded = prepared.encoded + encode_pending(target, encoder)
        with source.writing_stopped():
            _copy_changes(source.store, target, seen)
            if target.count().documents != source.store.count().documents:
                _copy_all(source.store, target, None)  # a document was added and deleted meanwhile
            encoded += encode_pending(target, encoder)
            remembered = _copy_remembered(source.store, target, encoder)
            carry_sent(source.store, target.path)
            documents = target.count().documents
            with source.feedback.replacement():  # later events are refused, not lost
                copy_feedback(source.store.path, target.path)
            target.close()
            folder = _publish(home, source.name, target.path)
            source.store.stop_writing()
    models = tuple(model.version for model in source.store.models())
    name, elapsed_s = encoder.identity.name, time.monotonic() - prepared.started
    return Migration(documents, encoded, models, remembered, name, folder, elapsed_s)


def clear_superseded(home: Home) -> list[Path]:
    """Remove superseded editions without readers, and what a killed drop left; for the writing process."""
    gone: list[Path] = []
    for suffix in (_SUPERSEDED, DELETED):
        for left in home.path.glob(f".*{suffix}"):
            shutil.rmtree(left, ignore_errors=True)
    for name in home.names():
        for folder in home.editions(name)[:-1]:
            if _unread(folder):
                # Renamed first, so that a partly deleted edition is recognised and removed later.
                doomed = folder.rename(folder.with_name(f".{folder.name}{_SUPERSEDED}"))
                shutil.rmtree(doomed, ignore_errors=True)
                gone.append(folder)
    return gone


def _target(folder: Path, source: Store, encoder: TextEncoder, passages: PassageOptions | None) -> Store:
    """Open the unfinished edition of an earlier call for this encoder, or create one."""
    identity, cutting = encoder.identity, (passages or PassageOptions()).cutting(encoder)
    if folder.exists():
        try:
            target = Store.open(folder)
            made_for = (target.name, target.encoder, PassageLengths.of(target))
            if made_for == (source.name, identity.to_dict(), cutting):
                return target
            target.close()
        except DsearchError:
            pass  # incomplete; everything in it is also in the source
        shutil.rmtree(folder)
    return Store.create(
        folder,
        name=source.name,
        encoder=identity.to_dict(),
        dimension=identity.dimension,
        passages=None if cutting is None else cutting.to_dict(),
    )


def _to_be_built(target: Store, keys: KeyOptions, language: str) -> bool:
    """Return True if the index is missing, has other keys or terms, or is out of date by many changes."""
    live = target.live_generation()
    if live is None or KeyOptions.of(target) != keys or language_of(target) != language:
        return True
    changes = target.changes_since(live.snapshot)
    return len(changes.added) + len(changes.removed) > _FEW


def _copy_all(source: Store, target: Store, on_progress: OnProgress | None) -> int:
    """Copy all documents of the source to the target; return the source's operation before that."""
    sequence, started, done = source.sequence, time.monotonic(), 0
    total = source.count().documents
    for page in _pages(source):
        target.upsert(page)
        done += len(page)
        if on_progress is not None:
            on_progress(Progress("read", done, total, time.monotonic() - started))
    for page in _pages(target):
        _delete_those_gone(source, target, [document.id for document in page])
    return sequence


def _copy_changes(source: Store, target: Store, since: int, most: int | None = None) -> int | None:
    """Copy the changes after an operation to the target; return the source's operation after that.

    Returns None, without any change, if there are more than `most`.
    """
    changes, pending = source.changes_since(since), source.pending().rows
    if most is not None and len(changes.added) + len(changes.removed) + len(pending) > most:
        return None
    written = source.documents([*changes.added.tolist(), *pending.tolist()])
    for start in range(0, len(written), _AT_A_TIME):
        target.upsert(written[start : start + _AT_A_TIME])
    _delete_those_gone(source, target, source.ids(changes.removed))
    return changes.sequence


def _copy_remembered(source: Store, target: Store, encoder: TextEncoder) -> int:
    """Replace the remembered queries of the target by those of the source; return their number.

    Verdicts of the gate that the target does not have are added.

    Queries that the target has are not encoded again. Grades of documents that are gone are dropped.
    """
    rows, states = source.judged(), {row.text: row.state for row in target.judged()}
    if states:
        target.drop_judged(0)
    place = _places(source, target, {document for row in rows for document in row.grades})
    queries: list[MemoryRow] = []
    for row in rows:
        grades = {place[document]: grade for document, grade in row.grades.items() if document in place}
        if row.text and max(grades.values(), default=0.0) > 0:
            queries.append(replace(row, grades=grades, written=0))
    missing = [text for text in dict.fromkeys(row.text for row in queries) if text not in states]
    if missing:
        states.update(zip(missing, encoder.encode_queries(missing), strict=True))
    target.add_judged([replace(row, state=states[row.text]) for row in queries])
    for verdict in source.verdicts()[len(target.verdicts()) :]:  # judged queries stay those they are
        target.add_verdict(verdict)
    return len(queries)


def _places(source: Store, target: Store, documents: set[int]) -> dict[int, int]:
    """The row in the target of each of these documents that is still in the source."""
    left = source.embeddings_left(np.array(sorted(documents), np.int64))[0].tolist()  # purged ones have no id
    ids = source.ids(left)
    present, copies = source.rows_of(ids), target.rows_of(ids)
    return {
        row: copies[id] for row, id in zip(left, ids, strict=True) if present.get(id) == row and id in copies
    }


def _pages(store: Store) -> Iterator[list[Document]]:
    after = None
    while page := store.list(after, _AT_A_TIME):
        yield page
        after = page[-1].id


def _delete_those_gone(source: Store, target: Store, ids: Sequence[str]) -> None:
    present = source.rows_of(ids)
    if gone := [id for id in ids if id not in present]:
        target.delete(gone)


def _publish(home: Home, name: str, folder: Path) -> Path:
    """The switch."""
    newest = home.editions(name)[-1].name
    number = int(newest.partition("@")[2] or 1) + 1
    edition = home.path / f"{name}@{number}"
    folder.rename(edition)
    sync_folder(home.path)
    return edition


def _unread(folder: Path) -> bool:
    generations = folder / "generations"
    if not generations.is_dir():
        return True
    for generation in generations.iterdir():
        if generation.is_dir():
            with alone_with(generation) as alone:
                if not alone:
                    return False
    return True

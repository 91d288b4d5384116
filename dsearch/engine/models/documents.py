"""Documents embedded by a model's own encoder: `models/v3/documents/000001`, a generation bound to the model.

The store always keeps the embeddings of the collection's own encoder; v0, heads and query encoders search
those. A model trained in scope `full` has a generation of its own in its folder, built when the model is
saved and covered by the digests of its record. Query encoder and documents of one version therefore always
belong together, promotion and rollback remain one committed row, and other versions are not affected.

Later writes are embedded twice: by the collection's encoder when they are written, and by the model's encoder
when a search by that model first sees them. The latter embeddings stay in memory until `renew` (a refresh
while the model is live) builds `documents/000002` with them in it.

Numbers of these generations are unique in a collection: model × 1,000,000 + the number of the folder.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.encoder import EncoderIdentity
from dsearch.engine.indexing.chunking import PassageLengths, encode, passage_table
from dsearch.engine.indexing.tokens import Encoded, encode_rounded
from dsearch.engine.models.encoders import KEPT, ModelEncoders
from dsearch.engine.options import KeyOptions, keyword_texts, language_of, stop_words_of
from dsearch.engine.snapshot import Fresh, Snapshot, SnapshotTokens, keyword_of
from dsearch.errors import CorruptData, InvalidRequest, ModelNotFound
from dsearch.index import Generation, KeywordIndex, Tokenizer, remove_unfinished
from dsearch.index.durable import file_digest, files_below
from dsearch.index.tokens import DocumentTokens, TokenCodec, TokenTable
from dsearch.store import Passages, Store
from dsearch.types import Document

FOLDER = "documents"
RECENT = 8  # states that cursors and gradient calls can still name
FIRST = "000001"
_NUMBER = re.compile(r"[0-9]{6}")
_OF_A_MODEL = 1_000_000
_READ_AT_A_TIME = 8192
_ENCODED_AT_A_TIME = 256


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Every document of a state, encoded by a trained encoder.

    Attributes:
        state: whose documents.
        embeddings: by position, a long document's first passage; those of positions that cannot be found are
            not looked at.
        further: of long documents, by position: where their passages stand, and the embeddings after the
            first.
        tokens: by position, for a second stage; None without one.
    """

    state: Snapshot
    embeddings: Float32[np.ndarray, "positions encoder_dim"]
    further: Mapping[int, Passages] = field(default_factory=dict[int, Passages])
    tokens: TokenTable | SnapshotTokens | None = None


def write_documents(
    folder: Path, version: str, store: Store, documents: EncodedDocuments, encoder: EncoderIdentity
) -> dict[str, dict[str, Any]]:
    """Build a model's first generation into its unfinished folder; return size and digest of each file.

    Raises:
        InvalidRequest: embeddings of another shape.
    """
    state = documents.state
    if documents.embeddings.shape != (state.positions, store.dimension):
        raise InvalidRequest(
            f"embeddings of shape {list(documents.embeddings.shape)}; use one a position, "
            f"[{state.positions}, {store.dimension}]"
        )
    visible = state.visible()
    rows = state.rows(visible)
    order = np.argsort(rows)
    by_row = _by_row(state, documents.further)
    embeddings, tokens = documents.embeddings[visible[order]], documents.tokens
    beside = None if tokens is None else (tokens.codec, map(tokens.document, visible[order].tolist()))
    _build(folder / FOLDER, version, FIRST, store, state, rows[order], embeddings, by_row, encoder, beside)
    entries: dict[str, dict[str, Any]] = {}
    for path in files_below(folder / FOLDER):
        size, sha256 = file_digest(path)
        entries[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": sha256}
    return entries


def encoded_state(
    folder: Path, store: Store, documents: EncodedDocuments, encoder: EncoderIdentity
) -> Snapshot:
    """The state as the next version would search it with these documents, built into an empty folder.

    Raises:
        InvalidRequest: embeddings of another shape.
    """
    write_documents(folder, store.next_model_version(), store, documents, encoder)
    generation = Generation.open(folder / FOLDER / FIRST)
    nothing = np.zeros(0, np.int64)
    embeddings = np.zeros((0, store.dimension), np.float32)
    fresh = Fresh.of(nothing, embeddings, [], keyword_of(generation))
    view = Snapshot.of(generation, fresh, nothing, documents.state.sequence)
    return replace(view, reranked=documents.state.reranked)


class ModelDocuments:
    """The states of a collection as the models with documents of their own see it; for many threads.

    Args:
        store: the collection's.
        encoders: its models' encoders.
        base: gives the collection's present state.
    """

    def __init__(self, store: Store, encoders: ModelEncoders, base: Callable[[], Snapshot]):
        self._store, self._encoders, self._base = store, encoders, base
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, _State] = OrderedDict()
        self._own: dict[str, bool] = {}

    def has(self, version: str) -> bool:
        """Return True if this version has documents of its own; False for an unknown version."""
        if version not in self._own:
            try:
                self._own[version] = "documents" in self._store.model(version).record
            except ModelNotFound:
                return False
        return self._own[version]

    def snapshot(self, version: str) -> Snapshot:
        """Return the present state of the collection with this version's embeddings.

        Raises:
            CorruptData: the files are not what was written.
            EncoderMismatch, EncoderUnavailable: there are documents to encode, and nothing to do it.
        """
        base = self._base()
        with self._lock:
            state = self._loaded.get(version)
            if state is None:
                state = self._loaded[version] = _State(self._open(version))
            self._loaded.move_to_end(version)
            while len(self._loaded) > KEPT:
                self._loaded.popitem(last=False)
            if state.of != (base.generation.number, base.sequence):
                state.show(self._beside(version, state, base), base)
            return state.recent[0]

    def at(self, version: str, generation: int, sequence: int) -> Snapshot | None:
        """Return the state of that generation and operation, if it is among the last few."""
        self.snapshot(version)
        with self._lock:
            loaded = self._loaded.get(version)
            for part in [] if loaded is None else loaded.recent:
                if (part.generation.number, part.sequence) == (generation, sequence):
                    return part
        return None

    def encoded(self, version: str) -> EncodedDocuments | None:
        """Return the present documents as this version embeds them; None if it has none of its own."""
        if not self.has(version):
            return None
        state = self.snapshot(version)
        return EncodedDocuments(
            state, state.embeddings(np.arange(state.positions)), _further_passages(state), state.tokens
        )

    def renew(self, version: str) -> int:
        """Build the next generation of this version, with all documents written since; return its number.

        For the one writer.
        """
        state = self.snapshot(version)
        folder = self._store.path / "models" / version / FOLDER
        remove_unfinished(folder)
        numbers = _numbers(folder)
        visible = state.visible()
        rows = state.rows(visible)
        order = np.argsort(rows)
        embeddings = state.embeddings(visible[order])
        by_row = _by_row(state, _further_passages(state))
        identity = self._encoders.identity_of(version)
        name, tokens = f"{int(numbers[-1]) + 1:06d}", state.tokens
        beside = None if tokens is None else (tokens.codec, map(tokens.document, visible[order].tolist()))
        _build(folder, version, name, self._store, state, rows[order], embeddings, by_row, identity, beside)
        for number in numbers[1:-1]:  # the first is part of the model; the last may still be read
            shutil.rmtree(folder / number)
        self.forget(version)
        return self.snapshot(version).generation.number

    def forget(self, version: str) -> None:
        """Release a version's states."""
        with self._lock:
            self._loaded.pop(version, None)
            self._own.pop(version, None)

    def close(self) -> None:
        """Release all states."""
        with self._lock:
            self._loaded.clear()

    def _open(self, version: str) -> Generation:
        folder = self._store.path / "models" / version / FOLDER
        numbers = _numbers(folder)
        if not numbers:
            raise CorruptData(f"model {version}: {folder} is gone; promote another version, or train again")
        digest = None
        if numbers[-1] == FIRST:
            digest = self._store.model(version).record["documents"]["manifest_digest"]
        generation = Generation.open(folder / numbers[-1], digest=digest)
        identity = self._encoders.identity_of(version).to_dict()
        if generation.manifest.encoder != identity or generation.number // _OF_A_MODEL != int(version[1:]):
            raise CorruptData(
                f"{folder / numbers[-1]}: of another model; promote another version than {version}"
            )
        return generation

    def _beside(self, version: str, state: _State, base: Snapshot) -> Snapshot:
        """The state that the version's generation makes with what was written and deleted since."""
        generation = state.generation
        rows = np.sort(base.rows(base.visible()))
        added = np.setdiff1d(rows, generation.rows, assume_unique=True)
        removed = np.setdiff1d(generation.rows, rows, assume_unique=True)
        fresh = self._fresh(version, state, added, keyword_of(generation))
        view = Snapshot.of(generation, fresh, removed, base.sequence)
        return replace(view, reranked=base.reranked)

    def _fresh(
        self, version: str, state: _State, rows: Int64[np.ndarray, " fresh"], keyword: KeywordIndex
    ) -> Fresh:
        new = [row for row in rows.tolist() if row not in state.embeddings]
        cutting, built = PassageLengths.of(self._store), state.generation.tokens
        codec = None if built is None else built.codec
        for start in range(0, len(new), _ENCODED_AT_A_TIME):
            some = new[start : start + _ENCODED_AT_A_TIME]
            documents = self._store.documents(some)
            (embeddings, further), tokens = self._encode(version, documents, cutting, codec)
            state.tokens |= dict(zip(some, tokens, strict=True)) if tokens is not None else {}
            for place, row in enumerate(some):
                state.embeddings[row] = embeddings[place].copy()
                if place in further:
                    state.further[row] = further[place]
        rows_embeddings = [state.embeddings[row] for row in rows.tolist()]
        stacked = (
            np.stack(rows_embeddings) if rows_embeddings else np.zeros((0, self._store.dimension), np.float32)
        )
        passages = {row: state.further[row] for row in rows.tolist() if row in state.further}
        table = passage_table(passages, rows, self._store.dimension)
        beside = None
        if codec is not None:
            beside = TokenTable.of(codec, [state.tokens.get(row) for row in rows.tolist()])
        return Fresh.of(rows, stacked, keyword_texts(self._store, rows), keyword, table, beside)

    def _encode(
        self,
        version: str,
        documents: Sequence[Document],
        cutting: PassageLengths | None,
        codec: TokenCodec | None,
    ) -> tuple[Encoded, list[DocumentTokens] | None]:
        """Encode documents by a version's encoder; with their tokens, where its generation has some."""
        encoder = self._encoders.of(version)
        if codec is None:
            return encode(encoder, documents, cutting), None
        return encode_rounded(encoder, documents, cutting, codec, stop_words_of(self._store))


@dataclass(slots=True)
class _State:
    """In-memory state of a version: generation, later embeddings and tokens by row, the last snapshots."""

    generation: Generation
    embeddings: dict[int, Float32[np.ndarray, " encoder_dim"]] = field(
        default_factory=dict[int, "Float32[np.ndarray, ' encoder_dim']"]
    )
    further: dict[int, Passages] = field(default_factory=dict[int, Passages])
    tokens: dict[int, DocumentTokens] = field(default_factory=dict[int, DocumentTokens])
    recent: list[Snapshot] = field(default_factory=list[Snapshot])
    of: tuple[int, int] | None = None  # generation and operation of the collection's state that it follows

    def show(self, snapshot: Snapshot, base: Snapshot) -> None:
        self.recent = [snapshot, *self.recent][:RECENT]
        self.of = (base.generation.number, base.sequence)


def _build(
    folder: Path,
    version: str,
    name: str,
    store: Store,
    state: Snapshot,
    rows: Int64[np.ndarray, " documents"],
    embeddings: Float32[np.ndarray, "documents encoder_dim"],
    further: Mapping[int, Passages],
    encoder: EncoderIdentity,
    tokens: tuple[TokenCodec, Iterable[DocumentTokens | None]] | None,
) -> None:
    present = {row: further[row] for row in rows.tolist() if row in further}
    keys = KeyOptions.of(store)
    Generation.build(
        folder / name,
        number=int(version[1:]) * _OF_A_MODEL + int(name),
        sequence=state.sequence,
        rows=rows,
        embeddings=embeddings,
        passages=[passage_table(present, rows, store.dimension)],
        texts=_contents(store, rows),
        encoder=encoder.to_dict(),
        dense_kind=keys.kind,
        recall_target=keys.recall_target,
        memory_bytes=keys.memory_bytes,
        tokenizer=Tokenizer.for_language(language_of(store)),
        tokens=tokens,
    )


def _by_row(state: Snapshot, further: Mapping[int, Passages]) -> dict[int, Passages]:
    """The passages of documents by their rows, given by their positions."""
    rows = state.rows(np.array([*further], np.int64))
    return dict(zip(rows.tolist(), further.values(), strict=True))


def _further_passages(state: Snapshot) -> dict[int, Passages]:
    """The passages of a state's long documents that can be found, by their positions."""
    passages_of: dict[int, Passages] = {}
    passages = state.passages
    if passages is None:
        return passages_of
    long = np.intersect1d(passages.long, state.visible())
    for at in long.tolist():
        numbers = np.flatnonzero(passages.owners == at)
        keys = [at, *(state.positions + numbers).tolist()]
        spans = [span[1:] for key in keys if (span := passages.span_of(key)) is not None]
        passages_of[at] = Passages(np.array(spans, np.int64), passages.embeddings(numbers))
    return passages_of


def _contents(store: Store, rows: Int64[np.ndarray, " documents"]) -> Iterator[str]:
    for start in range(0, len(rows), _READ_AT_A_TIME):
        yield from keyword_texts(store, rows[start : start + _READ_AT_A_TIME])


def _numbers(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if _NUMBER.fullmatch(path.name))
